"""Who waits, by priority, then by arrival (R2), by need, or by how long.  Knows no rule of who may pass whom.

Keys are static while a request waits, so that a look costs the logarithm of how many wait, and the passing of time
costs nothing.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from itertools import islice
from math import inf
from operator import neg
from typing import Final

import msgspec
from attrs import define, field, frozen

from strata.messages import Seq
from strata.scheduling.lifecycle import State
from strata.scheduling.order import Key, Ordered
from strata.scheduling.record import Rank, Record

TRIES: Final = 8
"""So many queued ones whose expected pages fit are asked whether they also can begin now."""


class Room(msgspec.Struct, frozen=True, gc=False):
    """What a request must fit into to run; one that is parked has what it holds already."""

    pages: float
    """What a queued one may be expected to take, beside all that have started."""
    before: Rank | None = None
    """Only who ranks at least so may start: somebody was passed for long enough (`bypass_s`)."""
    beside: tuple[Record, ...] = ()
    """Those that run."""
    fits: Callable[[Record, Sequence[Record]], bool] | None = None
    """Whether one can run beside these; None: everybody can."""

    def admits(self, record: Record) -> bool:
        """Whether it could run, whoever it would pass."""
        return (record.state is not State.QUEUED or record.expected <= self.pages) and self.has_room(record)

    def has_room(self, record: Record) -> bool:
        return self.fits is None or self.fits(record, self.beside)

    def admits_after(self, record: Record, other: Record) -> bool:
        """Whether it could still start once the other has, as far as it goes by what they are expected to take."""
        if record.state is not State.QUEUED or other.state is not State.QUEUED:
            return True
        return record.expected + other.expected <= self.pages

    def without(self, *gone: Record) -> Room:
        """As if these were parked."""
        return (
            self
            if self.fits is None
            else msgspec.structs.replace(self, beside=tuple(r for r in self.beside if r not in gone))
        )

    @property
    def empty(self) -> Room:
        """As if nobody ran."""
        return self.without(*self.beside)


@frozen
class Kinds:
    """Who could use a place: one that has to read, one that answers."""

    reads: bool
    answers: bool


EITHER: Final = Kinds(reads=True, answers=True)
READS: Final = Kinds(reads=True, answers=False)
ANSWERS: Final = Kinds(reads=False, answers=True)


@define
class _Level:
    """Those of one priority."""

    queued: Ordered = field(factory=Ordered)
    queued_by_need: Ordered = field(factory=Ordered)
    reads: Ordered = field(factory=Ordered)
    """Parked, with some of the prompt to read."""
    reads_by_need: Ordered = field(factory=Ordered)
    """Queued and parked ones that may pass are found by need; who was sent back once is not here."""
    reads_by_wait: Ordered = field(factory=Ordered)
    answers: Ordered = field(factory=Ordered)
    """Parked, with the prompt read."""
    answers_by_wait: Ordered = field(factory=Ordered)

    def __len__(self) -> int:
        return len(self.queued) + len(self.reads) + len(self.answers)


class Waiting:
    """All that are queued or parked."""

    def __init__(self) -> None:
        # One that is empty is kept for the next: there are no more than there are priorities.
        self._levels: dict[int, _Level] = {}
        self._priorities: list[int] = []
        # By number; a key's last part is one.
        self._records: dict[float, Record] = {}
        # A parked read's need can still shrink while its park is on its way to the engine.
        self._filed: dict[Seq, Key] = {}
        self.queued = 0
        self.queued_tokens = 0

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, record: Record) -> bool:
        return record.seq in self._records

    def __repr__(self) -> str:
        return f"<Waiting {self.queued} queued, {len(self) - self.queued} parked>"

    @property
    def priorities(self) -> Sequence[int]:
        """Those at which somebody waits, the highest first."""
        return self._priorities

    def add(self, record: Record) -> None:
        level = self._level(record.priority)
        self._records[record.seq] = record
        match record.state:
            case State.QUEUED:
                level.queued.add(record.arrival_key, record.expected)
                self._file(record, level.queued_by_need, record.expected)
                self.queued += 1
                self.queued_tokens += record.prompt_tokens
            case State.PARKED_READING:
                level.reads.add(record.arrival_key, 0)
                level.reads_by_wait.add(record.wait_key, 0)
                if record.may_pass:
                    self._file(record, level.reads_by_need, 0)
            case _:
                level.answers.add(record.arrival_key, 0)
                level.answers_by_wait.add(record.wait_key, 0)

    def remove(self, record: Record) -> None:
        """Must be called before its state changes."""
        level = self._levels[record.priority]
        del self._records[record.seq]
        need_key = self._filed.pop(record.seq, None)
        match record.state:
            case State.QUEUED:
                level.queued.remove(record.arrival_key)
                self.queued -= 1
                self.queued_tokens -= record.prompt_tokens
            case State.PARKED_READING:
                level.reads.remove(record.arrival_key)
                level.reads_by_wait.remove(record.wait_key)
            case _:
                level.answers.remove(record.arrival_key)
                level.answers_by_wait.remove(record.wait_key)
        if need_key is not None:
            (level.queued_by_need if record.state is State.QUEUED else level.reads_by_need).remove(need_key)
        if not level:
            self._priorities.remove(record.priority)

    def needs_less(self, record: Record) -> None:
        """A parked read has read on, as its park is on its way to the engine; nothing happens if it doesn't wait."""
        filed = self._filed.get(record.seq)
        if filed is not None and filed != record.need_key:
            by_need = self._levels[record.priority].reads_by_need
            by_need.remove(filed)
            self._file(record, by_need, 0)

    def head(self, priority: int) -> Record | None:
        """The oldest that is queued, whether it fits or not."""
        level = self._levels.get(priority)
        return None if level is None else self._record(level.queued.first(inf))

    def first_head(self) -> Record:
        """The first in rank of those that are queued; there must be one."""
        for priority in self._priorities:
            if (head := self.head(priority)) is not None:
                return head
        raise LookupError("nobody is queued")

    def first_queued(self) -> Record | None:
        """The oldest of all that are queued and never started, whatever their priority."""
        heads = (self._first_new(level.queued) for level in self._levels.values())
        return min((head for head in heads if head is not None), key=_by_arrival, default=None)

    def oldest(self, priority: int, room: Room, kinds: Kinds = EITHER) -> Record | None:
        """The oldest that could run."""
        level = self._levels.get(priority)
        if level is None:
            return None
        found = None
        if kinds.reads:
            found = self._admitted(level.queued, room)
            reads = self._parked(level.reads, room)
            if reads is not None and (found is None or reads.arrival_key < found.arrival_key):
                found = reads
        if kinds.answers:
            answers = self._parked(level.answers, room)
            if answers is not None and (found is None or answers.arrival_key < found.arrival_key):
                found = answers
        return found

    def longest(self, priority: int, room: Room, kinds: Kinds = EITHER, *, queued: bool = True) -> Record | None:
        """Who has waited the longest of those that could run, the queued ones among them or not."""
        level = self._levels.get(priority)
        if level is None:
            return None
        found = None
        if kinds.reads:
            # A queued one waits since its arrival.
            found = self._admitted(level.queued, room) if queued else None
            reads = self._parked(level.reads_by_wait, room)
            if reads is not None and (found is None or reads.wait_key < found.wait_key):
                found = reads
        if kinds.answers:
            answers = self._parked(level.answers_by_wait, room)
            if answers is not None and (found is None or answers.wait_key < found.wait_key):
                found = answers
        return found

    def half_read(self, priority: int) -> int:
        """How many are parked with some of their prompt to read."""
        level = self._levels.get(priority)
        return 0 if level is None else len(level.reads)

    def shortest(self, priority: int, room: Room) -> Record | None:
        """Of those that have to read and may pass, and could run, the one with the least to read."""
        level = self._levels.get(priority)
        if level is None:
            return None
        queued, reads = self._admitted(level.queued_by_need, room), self._parked(level.reads_by_need, room)
        if queued is None or reads is None:
            return queued or reads
        return reads if reads.need_key < queued.need_key else queued

    def before(self, record: Record) -> int:
        """How many queued ones rank before this queued one."""
        higher = (p for p in self._priorities if p > record.priority)
        level = self._levels[record.priority]
        return sum(len(self._levels[p].queued) for p in higher) + level.queued.before(record.arrival_key)

    def _level(self, priority: int) -> _Level:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _Level()
        if not level:
            insort(self._priorities, priority, key=neg)
        return level

    def _file(self, record: Record, by_need: Ordered, size: int) -> None:
        key = self._filed[record.seq] = record.need_key
        by_need.add(key, size)

    def _admitted(self, queued: Ordered, room: Room) -> Record | None:
        key = queued.first(room.pages)
        if key is None:
            return None
        first = self._records[key[-1]]
        if room.before is not None and first.rank > room.before:
            return None
        if room.fits is None or room.has_room(first):
            return first
        others = (self._records[key[-1]] for key in islice(queued.all_within(room.pages), 1, TRIES))
        found = next((record for record in others if room.has_room(record)), None)
        return None if found is None or (room.before is not None and found.rank > room.before) else found

    def _parked(self, parked: Ordered, room: Room) -> Record | None:
        if room.fits is None:
            return self._record(parked.first(0))
        records = (self._records[key[-1]] for key in parked)
        return next((record for record in records if room.has_room(record)), None)

    def _first_new(self, queued: Ordered) -> Record | None:
        # Those that a dead engine had are but few.
        records = (self._records[key[-1]] for key in queued)
        return next((record for record in records if not record.started), None)

    def _record(self, key: Key | None) -> Record | None:
        return None if key is None else self._records[key[-1]]


def _by_arrival(record: Record) -> Key:
    return record.arrival_key
