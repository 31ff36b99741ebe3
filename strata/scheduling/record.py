"""What is known of one request: its state, where it stands, and what was measured.  Decides nothing.

Time comes in as an argument.  Nothing another request did changes what is written here.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from attrs import define, field, frozen

from strata.config import SchedulerSettings
from strata.errors import InvalidRequest
from strata.messages import Figures, Seq
from strata.scheduling.lifecycle import Change, Event, State, follow
from strata.scheduling.order import Key

Rank = tuple[int, float, int]
"""Who is served first: the negative priority, arrival, number."""

HISTORY: Final = 1000
"""How many changes are kept: the first half shows how it began, the rest what it does now."""

READS: Final = (State.QUEUED, State.READING, State.PARKED_READING)
"""With some of the prompt to read."""

BY_EQUALS: Final = frozenset({"short", "purse", "turn"})
"""Reasons to park for one of the same priority (R3)."""


@frozen
class Protection:
    """What was started by its age keeps its place for a quantum (R5)."""

    until: float
    """Monotonic seconds."""
    past: int
    """The priority that it aged past: only a higher one may end this early."""


class History:
    """The changes of a request; of more than HISTORY the first and the last half."""

    __slots__ = ("_first", "_last")

    def __init__(self) -> None:
        self._first: list[Change] = []
        self._last: deque[Change] | None = None
        """Few ever have so many."""

    def add(self, change: Change) -> None:
        if len(self._first) < HISTORY // 2:
            self._first.append(change)
            return
        if self._last is None:
            self._last = deque(maxlen=HISTORY - HISTORY // 2)
        self._last.append(change)

    def all(self) -> tuple[Change, ...]:
        return (*self._first, *(self._last or ()))


@define(eq=False, kw_only=True)
class Record:
    """One request, from its submit to its end.  Positions are in tokens, times in monotonic seconds."""

    seq: Seq
    prompt_tokens: int
    max_tokens: int
    priority: int
    arrived: float
    named_max: bool
    worst: int
    """Pages that its prompt and its longest answer take."""
    chunk_tokens: int
    prefix: tuple[bytes, ...] = ()
    """The names of the pages that its prompt fills (`scheduling.prefix`)."""

    rank: Rank = field(init=False)
    arrival_key: Key = field(init=False)
    state: State = State.QUEUED
    reads: bool = True
    """Whether it still has some of its prompt to read."""
    since: float = field(init=False)
    """When it came into its state; of a queued one its arrival."""
    position: int = 0
    """Known, or whole chunks read (tokens)."""
    expected: int = 0
    """What it reserves to start (pages)."""
    known: int = 0
    """What it need not read (tokens): of a queued one as it was when it came, else as it was when it started."""
    cached: int = 0
    """The same, as it was when it first started (tokens)."""
    done: int = 0
    total: int | None = None
    """Slices of the chunk under way: done, and all of them if the engine has named them."""
    chunk_before: tuple[int, int] | None = None
    """Tokens and slices of the last whole chunk."""
    written: int = 0
    again: int = 0
    """Decode steps until the engine stands where one before it stood (R10)."""
    deaths: int = 0
    """Of engines, that it may have killed."""
    wants_since: float | None = None
    """Since when it stands at the end of its pages."""

    waits_since: float = field(init=False)
    """Its arrival, or when it was last parked."""
    runs_since: float = 0.0
    """When it started or last resumed."""
    placed: int = 0
    """The step message that started or last resumed it."""
    slices: int = 0
    """Slices and decode steps since that step came into force."""
    stepped: bool = False
    """Whether a step has let it run since then; one that waits for its pages has a row, and is in no step."""
    left: int = 0
    """The last step message that let it run no more."""
    lacks_pages: bool = False
    """Whether it was parked because it was refused a page, or did not fit beside those above it."""
    protection: Protection | None = None
    """Since it started or last resumed."""
    short: bool = False
    """Whether it was short when it last started or resumed (R4 asks)."""
    may_pass: bool = True
    """False once its turn was over (R3.4), or the purse was spent and by itself (R3.3): then it has passed enough."""

    engine_s: float = 0.0
    chunk_s: float = 0.0
    """Engine time of the chunk under way."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    longest_gap_s: float = 0.0
    parks: dict[str, int] = field(factory=dict)
    parked_by: str = ""
    """The reason of its last park."""
    parked_s: dict[str, float] = field(factory=dict)
    """Time parked by reason, up to its last change."""
    resumes: int = 0
    spent: dict[State, float] = field(factory=dict)
    history: History = field(factory=History)

    def __attrs_post_init__(self) -> None:
        self.since = self.waits_since = self.arrived
        self.rank = (-self.priority, self.arrived, self.seq)
        self.arrival_key = (self.arrived, self.seq)

    @property
    def started(self) -> bool:
        """Whether it ever was."""
        return self.placed > 0

    @property
    def need_key(self) -> Key:
        return (self.need, self.arrived, self.seq)

    @property
    def wait_key(self) -> Key:
        return (self.waits_since, self.seq)

    def is_protected(self, now: float) -> bool:
        return self.protection is not None and now < self.protection.until

    @property
    def chunk_end(self) -> int:
        return min(self.prompt_tokens, (self.position // self.chunk_tokens + 1) * self.chunk_tokens)

    @property
    def in_last_chunk(self) -> bool:
        return (self.position // self.chunk_tokens + 1) * self.chunk_tokens >= self.prompt_tokens

    @property
    def need(self) -> int:
        """Tokens still to read, the chunk under way counted by its slices; at least 1."""
        left = self.prompt_tokens - self.position
        if self.total and self.done:
            left -= (self.chunk_end - self.position) * self.done // self.total
        return left if left > 1 else 1

    @property
    def stands_at(self) -> int:
        """Its position, with what is done of its chunk and what is written (tokens)."""
        return self.prompt_tokens + self.written - self.again if not self.reads else self.prompt_tokens - self.need

    @property
    def slices_left(self) -> int | None:
        """Slices of the chunk under way that are still to do, None if that is not known.

        Until the engine names them they are those of the chunk before, by its length: never too many, as a chunk is
        cut into tiles of rows.
        """
        if self.total is not None:
            return self.total - self.done
        if self.chunk_before is None:
            return None
        tokens, slices = self.chunk_before
        return slices * (self.chunk_end - self.position) // tokens

    @property
    def parks_by_equals(self) -> int:
        return sum(n for reason, n in self.parks.items() if reason in BY_EQUALS)

    def length(self, settings: SchedulerSettings) -> int:
        """Tokens that it is taken to have before it: `need` and the rest of its answer.

        One that names no max_tokens is taken to write `expect_new_tokens`, and all that it may once it wrote those.
        """
        most = self.max_tokens
        if not self.named_max and self.written < settings.expect_new_tokens:
            most = min(most, settings.expect_new_tokens)
        return (self.need if self.reads else 1) + self.left_to_write(most)

    def left_to_write(self, most: int) -> int:
        """Decode steps until its answer has `most` tokens."""
        return most - self.written + self.again

    def is_short(self, settings: SchedulerSettings) -> bool:
        return self.length(settings) <= settings.short_tokens

    def change(self, event: Event, reason: str, now: float) -> None:
        """Follow the table.  Raises IllegalTransition."""
        state = follow(self.state, event)
        self.spent[self.state] = self.spent.get(self.state, 0.0) + now - self.since
        if self.state.parked:
            self.parked_s[self.parked_by] = self.parked_s.get(self.parked_by, 0.0) + now - self.since
        self.state, self.since, self.reads = state, now, state in READS
        if event is Event.PARKED:
            self.waits_since, self.parked_by = now, reason
            self.parks[reason] = self.parks.get(reason, 0) + 1
        elif event is Event.RESUMED:
            self.resumes += 1
        self.history.add(Change(state, now, reason))

    def read(self, position: int) -> None:
        """A chunk is complete, up to `position`."""
        # A chunk of one slice has no heartbeat.
        self.chunk_before = (position - self.position, self.total or 1)
        self.position = position
        self.done, self.total, self.chunk_s = 0, None, 0.0

    def lost(self, reason: str, now: float) -> None:
        """Its state is lost with the engine; it waits to be read and written again, as far as it was."""
        self.change(Event.REPLAYED, reason, now)
        self.waits_since, self.wants_since = now, None
        self.position = self.known = self.done = 0
        self.total, self.chunk_before, self.chunk_s = None, None, 0.0
        # The last one is decoded for the token after it, as ever.
        self.again = max(0, self.written - 1)
        self.protection = None

    def wrote(self, now: float) -> None:
        """One more token of the answer has come."""
        self.written += 1
        if self.last_token_at is None:
            self.first_token_at = now
        else:
            self.longest_gap_s = max(self.longest_gap_s, now - self.last_token_at)
        self.last_token_at = now

    def figures(self, now: float, *, ahead: int = 0) -> Figures:
        spent = dict(self.spent)
        if self.state is not State.DONE:
            spent[self.state] = spent.get(self.state, 0.0) + now - self.since
        parked_s = dict(self.parked_s)
        if self.state.parked:
            parked_s[self.parked_by] = parked_s.get(self.parked_by, 0.0) + now - self.since
        return Figures(
            state=str(self.state),
            prompt_tokens=self.prompt_tokens,
            read_tokens=self.position if self.started else 0,
            written_tokens=self.written,
            cached_tokens=self.cached,
            ahead=ahead,
            queue_s=spent.get(State.QUEUED, 0.0),
            read_s=spent.get(State.READING, 0.0),
            parked_s=spent.get(State.PARKED_READING, 0.0) + spent.get(State.PARKED_DECODING, 0.0),
            decode_s=spent.get(State.DECODING, 0.0),
            engine_s=self.engine_s,
            ttft_s=None if self.first_token_at is None else self.first_token_at - self.arrived,
            longest_gap_s=self.longest_gap_s,
            total_s=sum(spent.values()),
            parks=dict(self.parks),
            parked_s_by=parked_s,
            resumes=self.resumes,
        )


def must_be_whole(**numbers: object) -> None:
    """Sizes and priorities, by their names.  Raises InvalidRequest."""
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise InvalidRequest(f"{name} {number!r} is not a whole number", param=name)
