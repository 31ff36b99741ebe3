"""A trace through the scheduler, in made-up time.  Knows when things happen; not what they cost, nor who is next.

It plays the dispatcher: what arrives at one instant is heard at once and decided once, and what is decided reaches the
engine at its next boundary, as it does in a server.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import ceil, inf
from typing import Final

from attrs import define, field, frozen

from strata.config import SchedulerSettings
from strata.errors import StrataError
from strata.messages import ChunkRead, Close, Ended, Seq
from strata.scheduling.decision import Statistics
from strata.scheduling.spans import ChunksRead, Span, SpanScheduler, Taken
from strata.simulate.cost import TICKS, CostModel, in_ticks
from strata.simulate.engine import Fact, SimulatedEngine
from strata.simulate.trace import TraceRequest


@frozen
class Machine:
    """What the simulated engine has."""

    cost: CostModel
    pages: int
    page_tokens: int = 64
    workspaces: int = 2


COLUMNS: Final = ("ttft_s", "total_s", "longest_gap_s", "queue_s", "engine_s", "parks")
"""Of a run: one figure for each request."""


@define
class Run:
    """What became of every request."""

    requests: Sequence[TraceRequest]
    refused: int = 0
    """Never served: too long for the pages, the queue was full, or it waited in it for longer than it may."""
    ended_at: float = 0.0
    """Seconds from the trace's begin."""
    statistics: Statistics | None = None
    ttft_s: array[float] = field(init=False)
    """By place in the trace; nan of one that was refused."""
    total_s: array[float] = field(init=False)
    longest_gap_s: array[float] = field(init=False)
    queue_s: array[float] = field(init=False)
    engine_s: array[float] = field(init=False)
    parks: array[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        nothing, n = array("d", [float("nan")]), len(self.requests)
        self.ttft_s, self.total_s, self.longest_gap_s = nothing * n, nothing * n, nothing * n
        self.queue_s, self.engine_s = nothing * n, nothing * n
        self.parks = array("q", [0]) * n

    def note(self, end: Ended) -> None:
        figures, at = end.figures, end.seq - 1
        if figures.ttft_s is None:
            self.refused += 1
            return
        self.ttft_s[at] = figures.ttft_s
        self.total_s[at] = figures.total_s
        self.longest_gap_s[at] = figures.longest_gap_s
        self.queue_s[at] = figures.queue_s
        self.engine_s[at] = figures.engine_s
        self.parks[at] = sum(figures.parks.values())


def simulate(requests: Sequence[TraceRequest], settings: SchedulerSettings, machine: Machine) -> Run:
    """Let every request come at its time, and go on until all have ended.  `requests` are in order of time."""
    desk = Desk(requests, settings, machine)
    desk.run_all()
    return desk.run


class Desk:
    """Between a trace and the scheduler, and between that and the engine."""

    def __init__(self, requests: Sequence[TraceRequest], settings: SchedulerSettings, machine: Machine) -> None:
        self.run = Run(requests)
        self._requests = requests
        self._settings = settings
        self._machine = machine
        self._scheduler = SpanScheduler(
            settings, pages=machine.pages, page_tokens=machine.page_tokens, workspaces=machine.workspaces
        )
        self._engine = SimulatedEngine(machine.cost, chunk_tokens=settings.chunk_tokens, workspaces=machine.workspaces)
        self._came = 0
        self._next_arrival = in_ticks(requests[0].timestamp / 1000) if requests else inf
        self._wake_at = inf

    def __repr__(self) -> str:
        return f"<Desk {self._came} of {len(self._requests)} came>"

    def run_all(self) -> None:
        while self._goes_on():
            pass
        self._close()

    def run_until_idle_before(self, cut: int) -> bool:
        """Up to the arrival of the one at this place of the trace; whether nothing is left by then that matters later.

        Go on with `run_all` if not.
        """
        # Nothing is left if nobody is there, and every purse is full.
        while self._came < cut or self._engine.next_boundary <= self._next_arrival:
            if not self._goes_on():
                break
        self._close()
        statistics, full = self.run.statistics, self._settings.pass_burst_s
        assert statistics is not None
        is_idle = self._came == cut and self._engine.next_boundary == inf
        return is_idle and all(purse == full for purse in statistics.purses.values())

    def _goes_on(self) -> bool:
        """To the next event; False: there is none."""
        engine = self._engine
        outside = min(self._next_arrival, self._wake_at)
        if engine.next_boundary > outside:
            self._happen(outside)
        elif outside == inf == engine.next_boundary:
            return False
        else:
            self._run_engine(outside)
        return True

    def _close(self) -> None:
        self.run.ended_at = self._engine.now
        self.run.statistics = self._scheduler.statistics(self._engine.now)

    def _run_engine(self, until: float) -> None:
        engine, scheduler = self._engine, self._scheduler
        facts = engine.run(until, scheduler.steady(engine.now))
        # What only time ended has changed nothing that somebody has to decide about.
        if self._hear(facts) or engine.ran_out:
            self._decide(engine.now)

    def _happen(self, now: float) -> None:
        """What comes from outside the engine."""
        self._scheduler.give_pages()
        while self._next_arrival <= now:
            self._submit(now)
        self._decide(now)

    def _submit(self, now: float) -> None:
        request = self._requests[self._came]
        self._came += 1
        later = self._requests[self._came].timestamp if self._came < len(self._requests) else inf
        self._next_arrival = later if later == inf else in_ticks(later / 1000)
        try:
            self._scheduler.submit(
                Seq(self._came),
                prompt_tokens=request.input_length,
                max_tokens=request.output_length,
                priority=request.priority,
                arrived=now,
                prefix=request.prefix(self._machine.page_tokens),
                named_max=True,
                now=now,
            )
        except StrataError:
            self.run.refused += 1

    def _decide(self, now: float) -> None:
        engine = self._engine
        decision = self._scheduler.decide(now)
        for end in self._scheduler.take_ended():
            self.run.note(end)
        self._wake_at = inf if decision.wake_at is None else ceil(decision.wake_at * TICKS) / TICKS
        assert self._wake_at > now, "who asks to be asked at once would be asked for ever"
        for seq in decision.closes:
            engine.tell(Close(seq))
        for opened in decision.opens:
            request = self._requests[opened.seq - 1]
            engine.open(opened.seq, request.input_length, request.output_length, known=opened.known)
        if decision.step is not None:
            engine.tell(decision.step)
        if engine.must_hear and engine.next_boundary == inf:
            self._hear(engine.wake(now))

    def _hear(self, facts: list[Fact]) -> bool:
        """Whether what happened changes who runs, even if nobody waits."""
        scheduler, now = self._scheduler, self._engine.now
        changes = False
        for fact in facts:
            if isinstance(fact, Span):
                scheduler.ran(fact, now)
                changes = changes or bool(fact.ended)
            elif isinstance(fact, Taken):
                scheduler.took(fact.n, fact.at)
            elif isinstance(fact, ChunksRead):
                scheduler.chunks_read(fact, now)
            elif isinstance(fact, ChunkRead):
                scheduler.chunk_read(fact, now)
            else:
                scheduler.decoded(fact, now)
                changes = True
        return changes
