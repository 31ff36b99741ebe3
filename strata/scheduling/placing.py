"""Who gets a place and who leaves one: makes the moves that the rules name, until they name none (R3, R5, R7, R10).

Changes requests, rows and the queue alike; the rules only look.  Knows no message, of the engine's or to it.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from attrs import frozen

from strata.config import Preempt, SchedulerSettings
from strata.messages import Seq
from strata.scheduling.decision import Opening
from strata.scheduling.lending import Lending
from strata.scheduling.lifecycle import Event, State
from strata.scheduling.pace import Pace
from strata.scheduling.purse import Purses
from strata.scheduling.record import Protection, Record
from strata.scheduling.rows import Rows
from strata.scheduling.rules import lacks_only_pages, next_move, reader_should_stop
from strata.scheduling.steps import Steps
from strata.scheduling.supply import Supply
from strata.scheduling.suspects import Suspects
from strata.scheduling.view import Move, View
from strata.scheduling.waiting import Waiting


@frozen
class Placed:
    """What was done about who has a place."""

    opens: tuple[Opening, ...] = ()
    parks: bool = False
    """Whether anybody was parked."""
    until: float | None = None
    """When time alone may bring the next move, if all else stays; None: that has to be looked up."""

    def __add__(self, more: Placed) -> Placed:
        """And what was done after it."""
        return Placed(self.opens + more.opens, self.parks or more.parks, more.until)


class Placing:
    """`started` are those that the engine knows: who is first given a place is added here."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        waiting: Waiting,
        rows: Rows,
        purses: Purses,
        pace: Pace,
        steps: Steps,
        supply: Supply,
        lending: Lending,
        suspects: Suspects,
        started: dict[Seq, Record],
    ) -> None:
        self._settings = settings
        self._waiting = waiting
        self._rows = rows
        self._purses = purses
        self._pace = pace
        self._steps = steps
        self._supply = supply
        self._lending = lending
        self._suspects = suspects
        self._started = started
        self._aged: dict[int, float] = {}
        """By priority, when one of it last started by its age."""
        self.parks: Counter[str] = Counter()
        """By reason."""
        self.resumes = 0

    def __repr__(self) -> str:
        return f"<Placing {self._rows} {self._waiting}>"

    def view(self, now: float) -> View:
        """All that the rules look at."""
        reader = self._rows.reader
        at_end = reader is not None and not reader.done and self._steps.stops_at(reader.seq, reader.position)
        room = self._lending.room(now)
        return View(
            now, self._settings, self._rows, self._waiting, self._purses, room, self._aged, self._swap_s, at_end
        )

    def arrange(self, now: float) -> Placed:
        """Make every move that the rules ask for."""
        parks = self._park_unfit(now)
        if self._suspects:
            if self._suspects.are_in(self._rows):
                return Placed((), parks)
            if (suspect := self._suspects.next(self._lending.room(now).empty.admits)) is not None:
                return self._let_run_alone(suspect, now)
        opens: list[Opening] = []
        # Every rule is about somebody who waits.
        while self._waiting:
            view = self.view(now)
            lacks = lacks_only_pages(view)
            self._lending.lacks_pages(lacks, now)
            move, until = next_move(view)
            if move is None:
                # Whoever is found to lack pages may make less room for others from now on.
                return Placed(tuple(opens), parks, until if lacks is None else None)
            parks = parks or move.parks is not None
            if (opening := self._make(move, now)) is not None:
                opens.append(opening)
            parks = self._park_unfit(now) or parks
        return Placed(tuple(opens), parks, inf)

    def reader_stops(self, now: float) -> bool:
        """Whether the reader is to give way at the end of its chunk."""
        if self._rows.reader is None or self._settings.preempt is not Preempt.CHUNK:
            return False
        return reader_should_stop(self.view(now))

    # -- leaving a place ----------------------------------------------------------------------------------------------

    def _park_unfit(self, now: float) -> bool:
        """Park those that can't go on for want of pages (R7); whether there were any."""
        parked = False
        while (unfit := self._lending.unfit()) is not None:
            self._park(unfit, "pages", now)
            unfit.lacks_pages = parked = True
        return parked

    def _had_its_turn(self, record: Record, reason: str) -> bool:
        """R3.2: whether it passes no more.  One that others had spent the purse for, and not itself, may still."""
        return reason == "turn" or (reason == "purse" and record.engine_s >= self._settings.pass_burst_s)

    def _park(self, record: Record, reason: str, now: float) -> None:
        self._rows.leave(record)
        self._supply.park(record)
        record.change(Event.PARKED, reason, now)
        record.may_pass = record.may_pass and not self._had_its_turn(record, reason)
        self.parks[reason] += 1
        self._waiting.add(record)

    # -- getting one --------------------------------------------------------------------------------------------------

    def _let_run_alone(self, suspect: Record, now: float) -> Placed:
        """R10: until it has got past the point; all others are parked or wait."""
        others = tuple(self._rows)
        for record in others:
            self._park(record, "suspect", now)
        opening = self._make(Move(suspect, None, "suspect"), now)
        return Placed(() if opening is None else (opening,), bool(others))

    def _make(self, move: Move, now: float) -> Opening | None:
        if move.parks is not None:
            self._park(move.parks, move.reason, now)
        starts, opening = move.starts, None
        self._lending.runs_or_gone(starts.seq)
        self._waiting.remove(starts)
        if starts.state is State.QUEUED:
            opening = self._start(starts)
            starts.change(Event.STARTED, move.reason, now)
        else:
            starts.change(Event.RESUMED, move.reason, now)
            self._supply.run(starts)
            self.resumes += 1
        starts.placed, starts.runs_since, starts.slices = self._steps.next_n, now, 0
        starts.stepped = starts.lacks_pages = False
        starts.protection = self._protection(move, now)
        starts.short = starts.is_short(self._settings)
        self._rows.take(starts)
        return opening

    def _start(self, record: Record) -> Opening:
        self._started[record.seq] = record
        opening = self._supply.start(record)
        if not record.started:
            record.cached = opening.known
        self._pace.cached_tokens += opening.known
        return opening

    def _protection(self, move: Move, now: float) -> Protection | None:
        if move.past is not None:
            self._aged[move.starts.priority] = now
            return Protection(now + self._settings.quantum_s, move.past)
        # An equal that takes over by its purse goes on with the quantum that its priority has by age.
        equal = move.parks is not None and move.parks.priority == move.starts.priority
        return move.parks.protection if move.parks is not None and equal else None

    def _swap_s(self, record: Record) -> float:
        return self._supply.away(record) * self._pace.move_s
