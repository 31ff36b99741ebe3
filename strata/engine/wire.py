"""Messages as bytes: a length, a number for the type, and the value in msgpack.

A room of its own because both ends of a process host must agree on it to the byte, and neither may be brought down or
made to wait by what the other sends: what is too long, unknown or of the wrong shape is an error with a name.  Knows no
socket and no process.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import attrs
import msgspec
from attrs import frozen

from strata.engine.drive import Ping, Pong, Said, Told
from strata.engine.spec import EngineSpec
from strata.errors import StrataError
from strata.messages import (
    ChunkRead,
    Close,
    Closed,
    Decoded,
    EngineDied,
    Grant,
    Open,
    Progress,
    Ready,
    SeqFailed,
    Step,
    Stop,
    Stopped,
    SwapIn,
    SwapOut,
    SwappedIn,
    SwappedOut,
    Took,
    Wants,
)

MAX_FRAME: Final = 64 << 20
"""Bytes.  A prompt of a million tokens, the longest that is served, takes 5 MiB."""


class WireError(StrataError):
    """What came is no message, or what is to be sent can't be one."""


@frozen(kw_only=True)
class Begin:
    """The first that a child is told: what to build, as which incarnation, and what it may take."""

    spec: EngineSpec
    incarnation: int
    cpus: tuple[int, ...] = ()
    """Processors that it may run on; none named: those of its parent."""
    nice: int = 0
    memory_mib: int | None = None
    """Of memory that it may take (the model file, which is only mapped, aside); None: what there is."""


@frozen
class CouldNotStart:
    """There is no engine, and why; the child ends.  `kind` is the error's type, `setting` that of a ConfigError."""

    kind: str
    message: str
    setting: str | None = None


ToChild = Begin | Told
FromChild = CouldNotStart | Said

_KINDS: Final[tuple[type[Any], ...]] = (
    Begin,
    Ping,
    Open,
    Step,
    Grant,
    SwapOut,
    SwapIn,
    Close,
    Stop,
    CouldNotStart,
    Pong,
    Ready,
    Took,
    Progress,
    ChunkRead,
    Decoded,
    Wants,
    SwappedOut,
    SwappedIn,
    SeqFailed,
    Closed,
    Stopped,
    EngineDied,
)
"""A type's number is its place here: both ends are of one build, and `Ready` says of which."""

_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS)}
_DECODERS: Final = tuple(msgspec.msgpack.Decoder(kind) for kind in _KINDS)
_HEAD: Final = struct.Struct(">IB")
"""The bytes of the value, and the number of its type."""


def _plain(value: Any) -> Any:
    """What is a number, and more (such as NumPy's float64), as the number that it is."""
    for kind in (float, int, str):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{type(value).__name__} is nothing that msgpack has")


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_plain)


def encode(message: ToChild | FromChild) -> bytes:
    """The whole frame.  Raises WireError: it is no message, is too long, or holds what msgpack can't."""
    number = _NUMBERS.get(type(message))
    if number is None:
        raise WireError(f"{type(message).__name__} is no message between an engine and its host")
    try:
        value = _ENCODER.encode(message)
    except UnicodeEncodeError:
        value = _ENCODER.encode(_with_plain_text(message))
    except (TypeError, OverflowError) as error:
        raise WireError(f"{type(message).__name__} can't be sent: {error}") from error
    if len(value) > MAX_FRAME:
        raise WireError(f"{type(message).__name__} is too long to be sent: {len(value):,} bytes")
    return _HEAD.pack(len(value), number) + value


def _with_plain_text(message: Any) -> Any:
    """An error's text may quote what is no character, such as the stray bytes of a file's name."""
    texts = {
        attribute.name: value.encode("utf-8", "backslashreplace").decode()
        for attribute in attrs.fields(type(message))
        if isinstance(value := getattr(message, attribute.name), str)
    }
    return attrs.evolve(message, **texts)


class Frames:
    """Bytes in as they come, whole messages out."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __repr__(self) -> str:
        return f"<Frames: {len(self._bytes)} bytes>"

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def take(self) -> Any:
        """The next message, or None if it has not come whole.  Raises WireError; after that nothing can be taken."""
        if len(self._bytes) < _HEAD.size:
            return None
        size, number = _HEAD.unpack_from(self._bytes)
        if size > MAX_FRAME:
            raise WireError(f"a message of {size:,} bytes")
        if number >= len(_KINDS):
            raise WireError(f"a message of the unknown type {number}")
        end = _HEAD.size + size
        if len(self._bytes) < end:
            return None
        value = bytes(self._bytes[_HEAD.size : end])
        del self._bytes[:end]
        return _decode(number, value)


def _decode(number: int, value: bytes) -> Any:
    try:
        return _DECODERS[number].decode(value)
    except msgspec.MsgspecError as error:
        raise WireError(f"a {_KINDS[number].__name__} that is none: {error}") from error
