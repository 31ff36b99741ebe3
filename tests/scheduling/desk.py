"""The desk between the small honest engine and the scheduler.  For the tests of this room only.

It plays the dispatcher's part, and knows of every request what was asked and what became of it.
"""

from __future__ import annotations

from attrs import frozen
from model_engine import ModelEngine, Work

from strata.config import SchedulerSettings
from strata.errors import SequenceFailed, StrataError
from strata.messages import (
    Cancelled,
    ChunkRead,
    Close,
    Decoded,
    Ended,
    FromEngine,
    Open,
    Outcome,
    Progress,
    Sampling,
    Seq,
    SeqFailed,
    Step,
    SwappedIn,
    SwappedOut,
    Took,
    Wants,
)
from strata.scheduling import Decision, Scheduler
from strata.scheduling.prefix import chain


@frozen(kw_only=True)
class Asked:
    """A request as a test asked for it."""

    prompt: int
    max_tokens: int
    priority: int
    arrived: float
    tokens: tuple[int, ...]
    alike: int
    """So many of the first may be known (tokens)."""


class Desk:
    """Plays the dispatcher: hears the engine, asks the scheduler, and tells the engine what it decided."""

    def __init__(
        self,
        settings: SchedulerSettings,
        work: Work | None = None,
        *,
        pages: int = 1000,
        slots: int = 0,
        finishes_chunks: bool = False,
        held_s: float = 0.0,
        at_once: bool = False,
    ) -> None:
        self.settings = settings
        self.at_once = at_once
        """Whether it decides once about all that it finds said, as the dispatcher does, or after each fact."""
        self.work = work or Work(chunk_tokens=settings.chunk_tokens)
        self.pages = pages
        self.slots = slots
        self.scheduler = Scheduler(
            settings, pages=pages, page_tokens=self.work.page_tokens, workspaces=self.work.workspaces, slots=slots
        )
        self.engine = ModelEngine(self.work, pages=pages, slots=slots, finishes_chunks=finishes_chunks, held_s=held_s)
        self.asked: dict[Seq, Asked] = {}
        self.live: dict[Seq, Asked] = {}
        """Those of them that have not ended."""
        self.ended: dict[Seq, Ended] = {}
        self.order: list[tuple[str, Seq]] = []
        """What became of whom, in order: `parked`, `reading`, ..."""
        self.tokens: dict[Seq, list[int]] = {}
        self.steps: list[Step] = []
        self.wake_at: float | None = None
        """When the scheduler wants to be asked again."""
        self._seen: dict[Seq, int] = {}
        self._numbers = iter(range(1, 1_000_000))

    @property
    def now(self) -> float:
        return self.engine.now

    def number(self) -> Seq:
        return Seq(next(self._numbers))

    def submit(
        self,
        prompt: int,
        max_tokens: int = 40,
        *,
        answer: int | None = None,
        priority: int = 0,
        arrived: float | None = None,
        named_max: bool = True,
        seq: Seq | None = None,
        like: int | None = None,
        alike: int = 0,
    ) -> Seq:
        """Queue a request and decide.  `answer`: how long its answer would be by itself.

        All that are `like` one another begin with the same tokens, so many of them as are `alike` in both.
        """
        seq = self.number() if seq is None else seq
        tokens = tuple(0 if like is None else like + 1 if at < alike else -seq % 2**32 for at in range(prompt))
        arrived = self.now if arrived is None else arrived
        self.scheduler.submit(
            seq,
            prompt_tokens=prompt,
            max_tokens=max_tokens,
            priority=priority,
            arrived=arrived,
            named_max=named_max,
            now=self.now,
            prefix=() if like is None else chain(tokens, self.work.page_tokens),
        )
        self.engine.answers[seq] = answer or max_tokens
        if self.scheduler.figures(seq, self.now) is not None:
            self.asked[seq] = self.live[seq] = Asked(
                prompt=prompt,
                max_tokens=max_tokens,
                priority=priority,
                arrived=arrived,
                tokens=tokens,
                alike=0 if like is None else min(alike, prompt - 1),
            )
        self.decide()
        return seq

    def withdraw(self, seq: Seq, outcome: Outcome | None = None) -> bool:
        ended = self.scheduler.withdraw(seq, outcome or Cancelled("client"), self.now)
        self.decide()
        return ended

    def die(self, error: StrataError, *, pages: int | None = None, blamed: bool = True) -> None:
        """The engine is gone with all that was on its way, and a new one takes its place, with so many pages."""
        dead = self.engine
        self.scheduler.died(error, self.now, step=dead.step.n, blamed=blamed)
        self.pages = pages or self.pages
        same = {"finishes_chunks": dead.finishes_chunks, "held_s": dead.held_s}
        self.engine = ModelEngine(self.work, pages=self.pages, slots=self.slots, **same)
        self.engine.now, self.engine.answers, self.engine.poison = dead.now, dead.answers, dead.poison
        self.engine.ran = dead.ran
        sizes = {"pages": self.pages, "page_tokens": self.work.page_tokens, "workspaces": self.work.workspaces}
        self.scheduler.renew(**sizes, slots=self.slots, now=self.now)
        self.decide()

    def decide(self) -> Decision:
        decision = self.scheduler.decide(self.now)
        self.wake_at = decision.wake_at
        for seq in decision.closes:
            self.engine.tell(Close(seq))
        for opening in decision.opens:
            seq, asked = opening.seq, self.asked[opening.seq]
            sampling, written = Sampling(max_tokens=asked.max_tokens), tuple(self.tokens.get(seq, ()))
            self.engine.tell(Open(seq, asked.tokens, sampling, opening.pages, opening.known, written))
        for message in (*decision.grants, *decision.moves):
            self.engine.tell(message)
        if decision.step is not None:
            self.engine.tell(decision.step)
            self.steps.append(decision.step)
        self._note()
        return decision

    def hear(self, facts: int | None = None) -> None:
        """Give the scheduler so many facts (None: all there are), and let it decide after each, or about all."""
        heard = len(self.engine.facts) if facts is None else min(facts, len(self.engine.facts))
        for last in range(heard - 1, -1, -1):
            self._deliver(self.engine.facts.popleft())
            if not self.at_once or not last:
                self.decide()

    def run(self, boundaries: int | None = None, *, until: Seq | None = None) -> None:
        """Let both go on, each hearing the other at once: for so many boundaries, until one ends, or until all did."""
        while boundaries != 0 and (until is None or until not in self.ended):
            if not self.engine.advance() and not self.engine.facts:
                assert until is None, f"the engine is idle and {until} has not ended"
                return
            self.hear()
            boundaries = None if boundaries is None else boundaries - 1

    def state(self, seq: Seq) -> str | None:
        # Its last change says it too, and costs less than all its figures.
        history = self.scheduler.history(seq)
        return str(history[-1].state) if history else None

    def _deliver(self, fact: FromEngine) -> None:
        scheduler = self.scheduler
        match fact:
            case Took(n):
                scheduler.took(n, self.now)
            case Progress():
                scheduler.progressed(fact, self.now)
            case ChunkRead():
                scheduler.chunk_read(fact, self.now)
            case Decoded():
                for row in scheduler.decoded(fact, self.now):
                    assert row.seq not in self.ended, "a row of one that has ended"
                    self.tokens.setdefault(row.seq, []).append(row.token)
            case Wants(seq):
                scheduler.wants(seq, self.now)
            case SwappedOut():
                scheduler.swapped_out(fact)
            case SwappedIn():
                scheduler.swapped_in(fact)
            case SeqFailed(seq, error):
                scheduler.failed(seq, SequenceFailed(error), self.now)
            case other:
                raise AssertionError(f"{other} is not said by this engine")

    def _note(self) -> None:
        ended = self.scheduler.take_ended()
        for seq in self.live:
            history = self.scheduler.history(seq)
            self.order += [(str(change.state), seq) for change in history[self._seen.get(seq, 0) :]]
            self._seen[seq] = len(history)
        for end in ended:
            assert end.seq not in self.ended, "a second end"
            self.ended[end.seq] = end
            del self.live[end.seq]
