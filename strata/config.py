"""Every setting, its default, its range and its reason.  What a value can be at all is in `values`.

A bad value refuses the start and names its setting (`ConfigError`).  Seconds, tokens and MiB are named so.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import attrs
from attrs import field, frozen

from strata.errors import ConfigError
from strata.values import (
    each,
    file,
    flag,
    host_name,
    key,
    listenable,
    number,
    one_of,
    origin,
    path_of,
    processors,
    several,
    text,
    whole,
)

_share = number(0, 1, open_low=True, open_high=True)
_optional = attrs.validators.optional


def _setting(default: Any, check: Any, says: str, **more: Any) -> Any:
    """One setting: its default, its range, and its one line for people, from which help and tables are made."""
    return field(default=default, validator=check, metadata={"help": says}, **more)


class Preempt(StrEnum):
    """Where a run may be interrupted: never, at the ends of chunks, or after any slice."""

    OFF = "off"
    CHUNK = "chunk"
    SLICE = "slice"


class Device(StrEnum):
    """What computes: the processors, or the first CUDA card."""

    CPU = "cpu"
    CUDA = "cuda"


def _preempt(value: str) -> Preempt:
    try:
        return Preempt(value)
    except ValueError:
        raise ConfigError("preempt", f"{value!r} is not one of {', '.join(Preempt)}") from None


class OnEngineDeath(StrEnum):
    """What becomes of the requests whose state died with the engine."""

    FAIL = "fail"
    REPLAY = "replay"


def _on_engine_death(value: str) -> OnEngineDeath:
    try:
        return OnEngineDeath(value)
    except ValueError:
        raise ConfigError("on_engine_death", f"{value!r} is not one of {', '.join(OnEngineDeath)}") from None


def _device(value: str) -> Device:
    try:
        return Device(value)
    except ValueError:
        if str(value).startswith("cuda:"):
            raise ConfigError("device", "one card is used, the first: name it with CUDA_VISIBLE_DEVICES") from None
        raise ConfigError("device", f"{value!r} is not one of {', '.join(Device)}") from None


@frozen(kw_only=True)
class SchedulerSettings:
    """What `scheduling/` decides by; the rules (R1, R2, ...) are in docs/scheduling.md."""

    max_running: int = _setting(8, whole(1, 4096), "rows that run at once: the one that reads and all that decode")
    chunk_tokens: int = _setting(512, whole(16, 65536), "the grid of the read, from position 0")
    preempt: Preempt = _setting(
        Preempt.SLICE, None, "where a run may give way: off, chunk or slice", converter=_preempt
    )
    order_share: float = _setting(
        0.25, _share, "at least this share of the engine goes to the oldest of a priority, whoever comes"
    )
    pass_burst_s: float = _setting(
        5.0, number(0, 86400), "how far shorter requests may pass ahead before that share is enforced"
    )
    short_tokens: int = _setting(
        1024, whole(0), "a request is short if what it has to read and its max_tokens are at most this together"
    )
    read_share: float = _setting(0.5, _share, "reading's share of the engine while others decode")
    decode_gap_s: float = _setting(0.25, number(0, 3600), "how long a short read may hold up those that decode")
    finish_tokens: int = _setting(
        32, whole(0), "an answer that may have at most this many tokens left is not parked for an equal"
    )
    quantum_s: float = _setting(5.0, number(0, 86400), "how long one runs before an equal may take its turn")
    turn_wait_s: float = _setting(4.0, number(0, 86400), "how long one waits before it takes its turn")
    age_every_s: float = _setting(
        30.0, number(0, 86400, open_low=True), "how long one waits below another priority, for each level of it"
    )
    open_reads: int = _setting(4, whole(1), "half-read prompts of a priority beyond which turns begin no other")
    min_park_tokens: int = _setting(0, whole(0), "no parking for an equal below this position")
    max_parks: int = _setting(0, whole(0), "parks by equals over a request's life; 0: no cap")
    expect_new_tokens: int = _setting(
        256, whole(1), "what an answer is taken to write: where pages are reserved, and where none named max_tokens"
    )
    swap_ratio: float = _setting(
        10.0, number(0, 86400), "a turn that must bring pages back from the arena is so many times as long as that"
    )
    bypass_s: float = _setting(30.0, number(0, 86400), "how long others may start past a request that lacks only pages")
    prefix_cache: bool = _setting(True, flag, "read the beginning of a prompt only once for all that begin alike")
    max_queued: int = _setting(256, whole(1), "requests that may wait; beyond: 429")
    max_queued_tokens: int = _setting(1_000_000, whole(1), "prompt tokens that may wait; beyond: 429")
    max_wait_s: float | None = _setting(
        None,
        _optional(number(0, 86400, open_low=True)),
        "how long a request may wait in the queue, beyond: 503; unset: as long as it takes",
    )
    on_engine_death: OnEngineDeath = _setting(
        OnEngineDeath.FAIL,
        None,
        "what becomes of requests whose state died with the engine: fail, or replay by the next one",
        converter=_on_engine_death,
    )
    max_replays: int = _setting(
        1, whole(0), "replays of a request that may have killed the engine itself; parked ones are always replayed"
    )


@frozen(kw_only=True)
class EngineSettings:
    """What the engine allocates at start, once."""

    device: Device = _setting(Device.CPU, None, "what computes: cpu, or cuda, the first card", converter=_device)
    activations: str = _setting(
        "f32",
        one_of("f32", "bf16", "f16"),
        "what a card keeps keys and values in, and rounds rows and weights to as it multiplies many rows; not f32: on "
        "its tensor cores",
    )
    products: str = _setting(
        "auto",
        one_of("auto", "own", "cublas"),
        "who multiplies them on a card in 16 bits: own, our kernels; cublas, NVIDIA's; auto: cublas where it is there",
    )
    kv_mib: int | None = _setting(
        None,
        _optional(whole(1)),
        "memory for keys and values; unset: a quarter of what is free, on a card all of it, at most what is needed",
    )
    arena_mib: int | None = _setting(
        None,
        _optional(whole(0)),
        "memory for pages that had to make room; unset: up to 1024, as pages and free memory go; 0: none",
    )
    page_tokens: int = _setting(64, whole(1, 4096), "tokens in a page of keys and values")
    chunk_tokens: int = _setting(512, whole(16, 65536), "the grid of the read, from position 0")
    max_half_read: int = _setting(2, whole(1, 64), "workspaces for half-done chunks")
    context: int | None = _setting(
        None, _optional(whole(16)), "the longest sequence in tokens; unset: what the model was trained for"
    )
    threads: int | None = _setting(None, _optional(whole(1, 1024)), "unset: the processors this process may use")
    speculate: int = _setting(
        7,
        whole(0, 7),
        "tokens beyond the next one that are computed with it where the text has said them before; 0: none",
    )

    def __attrs_post_init__(self) -> None:
        if self.activations != "f32" and self.device is not Device.CUDA:
            raise ConfigError("activations", f"{self.activations} is for a card: set device to {Device.CUDA} too")
        if self.products == "cublas" and self.activations == "f32":
            raise ConfigError("products", "cublas multiplies numbers of 16 bits: set activations to bf16 or f16 too")


@frozen(kw_only=True)
class HostSettings:
    """Where the engine runs, what its process may take, when it counts as hung, and how often another follows."""

    engine_host: str | None = _setting(
        None,
        _optional(one_of("process", "thread")),
        "process or thread; unset: strata serve takes a process of its own (on Linux), a program a thread",
    )
    engine_cpus: str | None = _setting(
        None, _optional(processors), "processors that the engine's process may use, such as 0-3,8; unset: the server's"
    )
    engine_nice: int = _setting(0, whole(-20, 19), "added to the niceness of the engine's process")
    engine_memory_mib: int | None = _setting(
        None,
        _optional(whole(64)),
        "memory that the engine's process may take, the mapped model file aside; unset: what there is",
    )
    engine_log: Path | None = _setting(
        None,
        _optional(file),
        "a file for what the engine's process says, after what is there; unset: the server's log",
        converter=path_of,
    )
    engine_start_s: float = _setting(
        600.0,
        number(0, 86400, open_low=True),
        "how long the engine's process may take to load the model; one that takes longer is killed",
    )
    watchdog_floor_s: float = _setting(
        30.0,
        number(0, 86400, open_low=True),
        "an engine that is silent for so long, and for 20 of its longest slices, counts as hung",
    )
    restart_limit: int = _setting(5, whole(0), "engines that may die within restart_window_s; one more ends the server")
    restart_window_s: float = _setting(300.0, number(0, 86400, open_low=True), "the time that restart_limit counts in")
    restart_backoff_s: float = _setting(
        0.25,
        number(0, 60),
        "the pause after a second engine that dies young; doubled for each that follows, up to 8 s",
    )

    @property
    def cpus(self) -> tuple[int, ...]:
        """`engine_cpus` as numbers; none: not set."""
        spans = [part.partition("-") for part in (self.engine_cpus or "").split(",") if part]
        return tuple(cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1))


@frozen(kw_only=True)
class RequestSettings:
    """What a request may ask for, and what it gets where it asks for nothing."""

    default_max_tokens: int = _setting(
        2048, whole(1), "max_tokens of a request that names none; never more than the context leaves"
    )
    max_priority: int = _setting(0, whole(-100, 100), "the highest priority that a request may ask for")


@frozen(kw_only=True)
class ServeSettings:
    """Where the server listens, and what no client may exceed."""

    host: str = _setting(
        "127.0.0.1", listenable, "the address or name to listen on, unix:/path, or fd://3; empty: all addresses"
    )
    port: int = _setting(8000, whole(0, 65535), "0: any that is free")
    max_body_mib: float = _setting(4.0, number(0, 1024, open_low=True), "the largest request body")
    max_connections: int = _setting(1024, whole(1), "connections at once")
    backlog: int = _setting(256, whole(1, 65535), "connections that may wait to be accepted")
    body_timeout_s: float = _setting(30.0, number(0, 3600, open_low=True), "time to send a body")
    stall_timeout_s: float = _setting(
        30.0, number(0, 3600, open_low=True), "a client that takes nothing for this long is dropped"
    )
    keep_alive_s: float = _setting(75.0, number(0, 86400, open_low=True), "how long an idle connection is kept")
    comment_s: float = _setting(
        10.0, number(0, 3600, open_low=True), "a silent stream says where it stands this often, first after 1 s"
    )
    drain_timeout_s: float = _setting(15.0, number(0, 86400), "what is started may go on this long at the end")
    strict_fields: bool = _setting(False, flag, "refuse fields that the API does not know")
    api_keys: tuple[str, ...] = _setting(
        (),
        each(key),
        "keys, any of which opens the API; unset: none but those of api_key_file",
        converter=several,
        repr=False,
    )
    api_key_file: Path | None = _setting(
        None, _optional(file), "a file with one key a line; unset: no file", converter=path_of
    )
    admin_key: str | None = _setting(
        None,
        _optional(key),
        "opens /admin, which then takes no other; unset: what opens the API opens it too",
        repr=False,
    )
    allowed_hosts: tuple[str, ...] = _setting(
        (),
        each(host_name),
        "names by which it may be called, or *; unset: loopback's own there, any elsewhere",
        converter=several,
    )
    cors_origin: str | None = _setting(
        None, _optional(origin), "the web origin that may call it, or *; unset: none but its own"
    )
    insecure: bool = _setting(False, flag, "listen on a public address without a key")


@frozen(kw_only=True)
class Settings:
    """All of them.  Built by `Settings.of(policy=..., max_running=..., port=...)`, flat names, so that flags,
    environment and keyword arguments read alike."""

    scheduler: SchedulerSettings = SchedulerSettings()
    engine: EngineSettings = EngineSettings()
    hosting: HostSettings = HostSettings()
    requests: RequestSettings = RequestSettings()
    serve: ServeSettings = ServeSettings()
    policy: str = "batch"
    served_name: str | None = field(default=None, validator=_optional(text))
    """The model's name at the API; None: the file's own."""

    def __attrs_post_init__(self) -> None:
        read, counted = self.engine.chunk_tokens, self.scheduler.chunk_tokens
        if read != counted:
            raise ConfigError("chunk_tokens", f"the engine's is {read} and the scheduler's {counted}: it must be one")

    @classmethod
    def of(cls, *, policy: str = "batch", served_name: str | None = None, **named: Any) -> Settings:
        """Settings from flat names; a named value wins over the policy's.  Raises ConfigError."""
        if not isinstance(policy, str) or policy not in POLICIES:
            raise ConfigError("policy", f"{policy!r} is not one of {', '.join(POLICIES)}")
        values = {**POLICIES[policy], **named}
        parts: dict[str, Any] = {}
        known: set[str] = set()
        for part, kind in _PARTS.items():
            names = {a.name for a in attrs.fields(kind)}
            known |= names
            parts[part] = kind(**{k: v for k, v in values.items() if k in names})
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(unknown[0], "there is no such setting")
        return cls(policy=policy, served_name=served_name, **parts)


_PARTS: Final[Mapping[str, Any]] = {
    "scheduler": SchedulerSettings,
    "engine": EngineSettings,
    "hosting": HostSettings,
    "requests": RequestSettings,
    "serve": ServeSettings,
}

POLICIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "fifo": {"preempt": "off", "max_running": 1},
    "preempt": {"preempt": "slice", "max_running": 1},
    "batch": {"preempt": "slice"},
}
"""Named sets of settings."""
