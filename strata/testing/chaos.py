"""Engines and hosts that go wrong where they are told to: for tests of Strata, and of what is built on it.

A room of its own because it wraps any engine and any host, and is none.  An engine can be wrapped where it lives, also
in a process of its own, by name:

    spec = chaotic(file_engine(path, settings), Mishap(does="kill", at="ChunkRead", nth=2))
    async with strata.open_runtime(path, settings=settings, host=ProcessHost(spec)) as runtime: ...

or a host from outside, in the server's process: `ChaosHost(host, Mishap(does="hang", at="Decoded"))`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, Literal

import attrs
import trio
from attrs import evolve, frozen

from strata.engine.drive import Driven
from strata.engine.host import Deliver, EngineHost
from strata.engine.spec import EngineSpec
from strata.messages import Close, Closed, Decoded, FromEngine, Ready, Seq, SeqFailed, ToEngine

EXIT_CODE: Final = 70
"""With which `exit` ends the process."""
Does = Literal["raise", "refuse memory", "exit", "kill", "stop", "hang", "slow", "fail row"]


@frozen(kw_only=True)
class Mishap:
    """Once the engine was told, or is about to say, the nth of something, this happens.

    At a message: before it is obeyed.  At a fact: in its place; all that came before it was said.
    """

    does: Does
    """`raise`: an exception escapes.  `refuse memory`: that exception is a MemoryError.  `exit`, `kill`, `stop`: so
    ends, or stands still, the process that the engine lives in: give it one of its own.  `hang`: nothing more ever
    comes.  `slow`: it takes `seconds` more.  `fail row`: of a `Decoded`, the first row's sequence fails, and that one
    alone."""
    at: str = ""
    """The type of a message or of a fact: `Step`, `ChunkRead`; empty: any."""
    nth: int = 1
    """Counted over the engine's life, from 1."""
    onwards: bool = False
    """Also at each that follows."""
    seconds: float = 1.0

    def __attrs_post_init__(self) -> None:
        if self.does == "fail row" and self.at != "Decoded":
            raise ValueError("only of a Decoded a row can fail")


class _Mishaps:
    """Which of them is due: each counts what it waits for."""

    def __init__(self, mishaps: Iterable[Mishap]) -> None:
        self._mishaps = tuple(mishaps)
        self._seen = [0] * len(self._mishaps)

    def at(self, what: ToEngine | FromEngine) -> Mishap | None:
        due = None
        for i, mishap in enumerate(self._mishaps):
            if mishap.at in ("", type(what).__name__):
                self._seen[i] += 1
                if self._seen[i] == mishap.nth or (mishap.onwards and self._seen[i] > mishap.nth):
                    due = due or mishap
        return due


# -- an engine --------------------------------------------------------------------------------------------------------


class ChaosEngine:
    """Any engine, and what is to happen to it.  Give it to a `ThreadHost`, or by `chaotic` to a `ProcessHost`."""

    def __init__(self, engine: Driven, *mishaps: Mishap) -> None:
        self._engine = engine
        self._mishaps = _Mishaps(mishaps)
        self._coming: deque[tuple[FromEngine, Mishap | None]] = deque()
        """Facts that are to be said, and what happens in their place."""
        self._failed: set[Seq] = set()
        """Closed for having failed, which is not said twice."""

    @property
    def step_in_force(self) -> int | None:
        return self._engine.step_in_force

    @property
    def stopped(self) -> bool:
        return self._engine.stopped

    def ready(self, incarnation: int) -> Ready:
        return self._engine.ready(incarnation)

    def handle(self, message: ToEngine) -> None:
        if (mishap := self._mishaps.at(message)) is not None:
            _suffer(mishap)
        self._engine.handle(message)
        self._collect()

    def take_step(self) -> None:
        self._engine.take_step()
        self._collect()

    def advance(self) -> bool:
        """Does nothing more when something is about to happen, and says that it has something to do."""
        if any(mishap is not None for _, mishap in self._coming):
            return True
        busy = self._engine.advance()
        self._collect()
        return busy or any(mishap is not None for _, mishap in self._coming)

    def take_facts(self) -> list[FromEngine]:
        said: list[FromEngine] = []
        while self._coming:
            mishap = self._coming[0][1]
            if mishap is not None and said:
                break
            fact, _ = self._coming.popleft()
            said += [fact] if mishap is None else self._instead(fact, mishap)
        return said

    def close(self) -> None:
        self._engine.close()

    def _collect(self) -> None:
        for fact in self._engine.take_facts():
            if isinstance(fact, Closed) and fact.seq in self._failed:
                self._failed.remove(fact.seq)
            else:
                self._coming.append((fact, self._mishaps.at(fact)))

    def _instead(self, fact: FromEngine, mishap: Mishap) -> list[FromEngine]:
        if mishap.does == "fail row" and isinstance(fact, Decoded):
            return self._fail_first(fact)
        _suffer(mishap)
        return [fact]

    def _fail_first(self, decoded: Decoded) -> list[FromEngine]:
        failing = decoded.rows[0]
        rest = [row for row in decoded.rows if row.seq != failing.seq]
        if not any(row.ended for row in decoded.rows if row.seq == failing.seq):
            self._failed.add(failing.seq)
            self._engine.handle(Close(failing.seq))
            self._collect()
        failed = SeqFailed(failing.seq, "it was told to")
        return [failed, evolve(decoded, rows=tuple(rest))] if rest else [failed]


def _suffer(mishap: Mishap) -> None:
    """Returns only from what one can return from."""
    match mishap.does:
        case "raise":
            raise RuntimeError("it was told to")
        case "refuse memory":
            raise MemoryError("it was told to")
        case "exit":
            os._exit(EXIT_CODE)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            threading.Event().wait()
        case "slow":
            time.sleep(mishap.seconds)


def chaotic(spec: EngineSpec, *mishaps: Mishap) -> EngineSpec:
    """The same engine, and what is to happen to it, for a process of its own."""
    arguments = {
        "maker": spec.maker,
        "arguments": dict(spec.arguments),
        "mishaps": [attrs.asdict(mishap) for mishap in mishaps],
    }
    return EngineSpec("strata.testing.chaos:make_chaotic", arguments)


def make_chaotic(maker: str, arguments: Mapping[str, Any], mishaps: Iterable[Mapping[str, Any]]) -> ChaosEngine:
    """What `chaotic` names."""
    return ChaosEngine(EngineSpec(maker, arguments).build(), *(Mishap(**mishap) for mishap in mishaps))


# -- a host -----------------------------------------------------------------------------------------------------------


class ChaosHost:
    """Any host, a script too, and what is to happen between it and the server; all else of it is as it was.

    `kill` and `stop` need a host with a process: the signal comes in the very call in which the message is told or the
    fact heard, and both still pass.  `raise`: the host's run raises.  `hang`: from then on nothing passes.
    """

    def __init__(self, host: EngineHost, *mishaps: Mishap) -> None:
        if others := {mishap.does for mishap in mishaps} - {"kill", "stop", "raise", "hang"}:
            raise ValueError(f"not between a host and its server: {', '.join(others)}")
        self._host = host
        self._mishaps = _Mishaps(mishaps)
        self._life = trio.CancelScope()
        self._hangs = False

    def __getattr__(self, name: str) -> Any:
        """Its process, its language, its log."""
        return getattr(self._host, name)

    def tell(self, message: ToEngine) -> None:
        if self._passes(message):
            self._host.tell(message)

    async def run(self, deliver: Deliver, *, task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED) -> None:
        with self._life:
            await self._host.run(partial(self._hear, deliver), task_status=task_status)
            if self._hangs:
                await trio.sleep_forever()
        if self._life.cancelled_caught:
            raise RuntimeError("it was told to")

    def _hear(self, deliver: Deliver, fact: FromEngine) -> None:
        if self._passes(fact):
            deliver(fact)

    def _passes(self, what: ToEngine | FromEngine) -> bool:
        mishap = self._mishaps.at(what)
        match None if mishap is None else mishap.does:
            case "kill":
                os.kill(self._host_pid(), signal.SIGKILL)
            case "stop":
                os.kill(self._host_pid(), signal.SIGSTOP)
            case "raise":
                self._life.cancel()
            case "hang":
                self._hangs = True
        return not self._hangs

    def _host_pid(self) -> int:
        pid: int | None = getattr(self._host, "pid", None)
        if pid is None:
            raise ValueError(f"{self._host!r} has no process")
        return pid
