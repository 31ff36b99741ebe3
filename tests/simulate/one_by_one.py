"""The plain way to simulate: one slice, one token at a time, every fact said, a decision after each.

The plain scheduler, the engine's own credit and steps, and no arithmetic but adding.  For the tests of this room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil, inf

from attrs import define

from strata.config import SchedulerSettings
from strata.engine.step import Credit, Steps, allowed
from strata.errors import StrataError
from strata.messages import ChunkRead, Close, Decoded, Ended, Progress, Row, Seq, Step, Took
from strata.scheduling import Scheduler
from strata.scheduling.decision import Statistics
from strata.simulate.cost import CONTEXT_SPAN, TICKS, in_ticks
from strata.simulate.run import Machine
from strata.simulate.trace import TraceRequest


@define(eq=False)
class Body:
    seq: Seq
    prompt: int
    answer: int
    position: int = 0
    done: int = 0
    written: int = 0


class OneByOne:
    """After `go`: what ended, by number; and the scheduler's last word."""

    def __init__(self, requests: Sequence[TraceRequest], settings: SchedulerSettings, machine: Machine) -> None:
        self.ended: dict[Seq, Ended] = {}
        self.refused: set[Seq] = set()
        self.now = 0.0
        """The engine's last boundary."""
        self._settings = settings
        self._cost = machine.cost
        self._workspaces = machine.workspaces
        self._page_tokens = machine.page_tokens
        self._scheduler = Scheduler(
            settings, pages=machine.pages, page_tokens=machine.page_tokens, workspaces=machine.workspaces
        )
        self._requests = {Seq(n): request for n, request in enumerate(requests, 1)}
        self._coming = deque((in_ticks(request.timestamp / 1000), seq) for seq, request in self._requests.items())
        self._wake_at = inf
        self._inbox: list[Body | Step | Close] = []
        self._bodies: dict[Seq, Body] = {}
        self._steps = Steps()
        self._credit = Credit()
        self._half_read: list[Seq] = []
        self._reader: Body | None = None
        self._decoders: list[Body] = []
        self._ends = inf

    def statistics(self) -> Statistics:
        return self._scheduler.statistics(self.now)

    def go(self) -> None:
        while True:
            comes = self._coming[0][0] if self._coming else inf
            outside = min(comes, self._wake_at)
            if min(self._ends, outside) == inf:
                return
            if self._ends <= outside:
                self._boundary()
            else:
                while self._coming and self._coming[0][0] <= outside:
                    self._submit(*self._coming.popleft())
                self._decide(outside)

    def _submit(self, now: float, seq: Seq) -> None:
        request = self._requests[seq]
        try:
            self._scheduler.submit(
                seq,
                prompt_tokens=request.input_length,
                max_tokens=request.output_length,
                priority=request.priority,
                arrived=now,
                prefix=request.prefix(self._page_tokens),
                named_max=True,
                now=now,
            )
        except StrataError:
            self.refused.add(seq)

    def _decide(self, now: float) -> None:
        decision = self._scheduler.decide(now)
        for end in self._scheduler.take_ended():
            if end.figures.ttft_s is None:
                self.refused.add(end.seq)
            else:
                self.ended[end.seq] = end
        self._wake_at = inf if decision.wake_at is None else ceil(decision.wake_at * TICKS) / TICKS
        for opening in decision.opens:
            request = self._requests[opening.seq]
            self._inbox.append(Body(opening.seq, request.input_length, request.output_length, opening.known))
        self._inbox += [Close(seq) for seq in decision.closes]
        if decision.step is not None:
            self._inbox.append(decision.step)
        if self._ends == inf and self._inbox:
            self.now = now
            for fact in self._begin():
                self._say(fact)
            self._decide(now)

    # -- the engine ---------------------------------------------------------------------------------------------------

    def _boundary(self) -> None:
        """What was under way is done; the next begins before anybody can answer to it."""
        self.now = self._ends
        facts = self._finish()
        took = self._begin()
        for fact in [*facts, *took]:
            self._say(fact)
        self._decide(self.now)

    def _begin(self) -> list[Took]:
        for message in self._inbox:
            match message:
                case Body():
                    self._bodies[message.seq] = message
                case Step():
                    self._steps.tell(message)
                case Close(seq):
                    del self._bodies[seq]
        self._inbox.clear()
        took = self._take()
        self._reader, self._decoders = self._next_reader(), self._next_decoders()
        self._ends = inf
        if self._reader is not None and self._decoders:
            assert self._steps.current is not None
            self._credit.share(self._steps.current)
        if self._reads():
            assert self._reader is not None
            self._ends = self.now + self._slice_s(self._reader)
        elif self._decoders:
            self._ends = self.now + self._step_s()
        return took

    def _take(self) -> list[Took]:
        step = self._steps.waiting
        if step is None:
            return []
        reader = self._named(step)
        if reader is None or self._has_workspace(reader):
            self._steps.take()
            return [Took(step.n)]
        return []

    def _named(self, step: Step | None) -> Body | None:
        reader = None if step is None or step.read is None else self._bodies.get(step.read)
        if reader is None or reader.position == reader.prompt:
            return None
        assert step is not None
        return reader if step.read_until is None or reader.position < step.read_until else None

    def _has_workspace(self, reader: Body) -> bool:
        return bool(reader.done) or len(self._half_read) < self._workspaces

    def _next_reader(self) -> Body | None:
        if self._steps.waiting is not None:
            return self._bodies[self._half_read[-1]]
        reader = self._named(self._steps.current)
        if reader is None or self._has_workspace(reader):
            return reader
        return self._bodies[self._half_read[-1]]

    def _next_decoders(self) -> list[Body]:
        step = self._steps.current
        named = [] if step is None else [self._bodies[seq] for seq in allowed(step) if seq in self._bodies]
        return [body for body in named if body.position == body.prompt]

    def _reads(self) -> bool:
        return self._reader is not None and (not self._decoders or self._credit.allows_a_slice)

    def _chunk(self, body: Body) -> tuple[int, int]:
        """Its tokens and its end."""
        grid = self._settings.chunk_tokens
        end = min(body.prompt, (body.position // grid + 1) * grid)
        return end - body.position, end

    def _slice_s(self, body: Body) -> float:
        return self._cost.slice_seconds(self._chunk(body)[0], body.position)

    def _step_s(self) -> float:
        spans = sum((body.prompt + body.written) // CONTEXT_SPAN for body in self._decoders)
        return self._cost.step_seconds(len(self._decoders), spans)

    def _finish(self) -> list[Progress | ChunkRead | Decoded]:
        facts = self._slice(self._reader) if self._reads() and self._reader is not None else self._decode()
        if self._reader is None or not self._decoders:
            self._credit.clear()
        return facts

    def _slice(self, body: Body) -> list[Progress | ChunkRead | Decoded]:
        tokens, end = self._chunk(body)
        seconds, total = self._slice_s(body), self._cost.slices(tokens)
        self._credit.read(seconds)
        body.done += 1
        if body.seq in self._half_read:
            self._half_read.remove(body.seq)
        if body.done < total:
            self._half_read.append(body.seq)
            chunk = body.position // self._settings.chunk_tokens
            return [Progress(body.seq, chunk, body.done, total, seconds)]
        body.position, body.done = end, 0
        facts: list[Progress | ChunkRead | Decoded] = [ChunkRead(body.seq, end, seconds)]
        if end == body.prompt:
            facts.append(self._rows([body], 0.0))
        return facts

    def _decode(self) -> list[Progress | ChunkRead | Decoded]:
        seconds = self._step_s()
        assert self._steps.current is not None
        self._credit.decoded(seconds, self._steps.current)
        return [self._rows(self._decoders, seconds)]

    def _rows(self, bodies: list[Body], seconds: float) -> Decoded:
        rows = []
        for body in bodies:
            body.written += 1
            ends = body.written == body.answer
            rows.append(Row(body.seq, 0, "length" if ends else None))
            if ends:
                del self._bodies[body.seq]
        assert self._steps.current is not None
        return Decoded(self._steps.current.n, tuple(rows), seconds)

    def _say(self, fact: Took | Progress | ChunkRead | Decoded) -> None:
        scheduler = self._scheduler
        match fact:
            case Took(n):
                scheduler.took(n, self.now)
            case Progress():
                scheduler.progressed(fact, self.now)
            case ChunkRead():
                scheduler.chunk_read(fact, self.now)
            case Decoded():
                scheduler.decoded(fact, self.now)
