"""That what runs fits the device, and whose pages move (R6, R7).  Looks at who runs and who waits, in order of rank.

Knows no rule of who is next: it says who could run, parks nobody itself, and moves pages only for those that run.  If
pages can't be moved it has nothing to say, for then all that started has its worst case for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

from attrs import define, field

from strata.config import SchedulerSettings
from strata.messages import Grant, Seq, SwapIn, SwapOut
from strata.scheduling.lifecycle import State
from strata.scheduling.record import Record
from strata.scheduling.rows import Rows
from strata.scheduling.supply import Supply
from strata.scheduling.waiting import Room


@define
class Served:
    """What those that run get now."""

    pages: dict[Seq, tuple[int, ...]] = field(factory=dict)
    moves: list[SwapOut | SwapIn] = field(factory=list)
    lacking: int = 0
    """Pages that they still wait for, and that nothing on its way will free."""
    finishes: Record | None = None
    """Whose half-done chunk is in the way of all that, and is to be read to its end first."""
    changed: bool = False
    """Whether the last that was given was new pages."""

    @property
    def grants(self) -> tuple[Grant, ...]:
        return tuple(Grant(seq, pages) for seq, pages in self.pages.items())

    def give(self, grant: Grant) -> None:
        self.pages[grant.seq] = self.pages.get(grant.seq, ()) + grant.pages
        self.changed = True

    def add(self, more: Served) -> None:
        """What was given after that."""
        for grant in more.grants:
            self.give(grant)
        self.moves += more.moves
        self.lacking, self.finishes, self.changed = more.lacking, more.finishes, more.changed


class Lending:
    """`started` of all `records` are those that hold pages; those of them that have no row are parked."""

    def __init__(
        self,
        settings: SchedulerSettings,
        supply: Supply,
        rows: Rows,
        records: Mapping[Seq, Record],
        started: Mapping[Seq, Record],
    ) -> None:
        self._settings = settings
        self._supply = supply
        self._rows = rows
        self._records = records
        self._started = started
        self._limit = 2 * settings.max_running + 2
        """Pages that may move without a slice or a step between, where one could run."""
        self._moved = 0
        """Since the last of those, or on their way at that time."""
        self._finishes: Record | None = None
        self._waits: dict[Seq, float] = {}
        """Those that lack only pages, queued or parked, and since when."""
        self._room = Room(0)
        """As it last was, where nobody waits for pages and none can be moved."""

    def __repr__(self) -> str:
        return f"<Lending {self._supply}, {len(self._waits)} wait for pages>"

    @property
    def waiting(self) -> int:
        """How many queued ones lacked only pages when they were first in rank."""
        return sum(1 for seq in self._waits if seq not in self._started)

    @property
    def short(self) -> int:
        """How many parked ones lack only pages."""
        return sum(1 for seq in self._waits if seq in self._started)

    # -- who could run ------------------------------------------------------------------------------------------------

    def room(self, now: float) -> Room:
        """What a request must fit into to run."""
        pages = self._supply.pages.room
        fits = self._supply.fits if self._supply.swaps else None
        if not fits and not self._waits:
            if pages != self._room.pages:
                self._room = Room(pages)
            return self._room
        room = Room(pages, beside=tuple(self._rows) if fits else (), fits=fits)
        if not self._waits:
            return room
        # Once it fits it waits like all others, and only its purse says who may pass.
        passed = (self._records[seq] for seq, at in self._passed() if at <= now)
        ranks = (record.rank for record in passed if not room.admits(record))
        return Room(pages, min(ranks, default=None), room.beside, fits)

    def changes_at(self, now: float) -> float:
        """When one of those that lack only pages will have been passed for long enough; inf if none will."""
        return min((at for _, at in self._passed() if at > now), default=inf) if self._waits else inf

    def runs_or_gone(self, seq: Seq) -> None:
        self._waits.pop(seq, None)

    def lacks_pages(self, queued: Record | None, now: float) -> None:
        """This one would run now but for them."""
        if queued is not None:
            self._waits.setdefault(queued.seq, now)

    def look(self, queued: Record | None, now: float) -> None:
        """Who lacks only pages now: of those that are parked, and this one."""
        self.lacks_pages(queued, now)
        beside = tuple(self._rows)
        running = {record.seq for record in beside}
        for seq, record in self._started.items():
            if seq not in running and not self._supply.fits(record, beside):
                self._waits.setdefault(seq, now)
            else:
                self._waits.pop(seq, None)

    def forget(self) -> None:
        """The engine is gone: nothing is on its way, and nobody lacks pages."""
        self._waits.clear()
        self._finishes, self._moved = None, 0

    def _passed(self) -> Iterable[tuple[Seq, float]]:
        """From when on others may not start before it.  Who was refused a page is not passed by anybody."""
        for seq, since in self._waits.items():
            record = self._started.get(seq)
            at_once = record is not None and record.lacks_pages
            yield seq, since if at_once else since + self._settings.bypass_s

    # -- who must give way --------------------------------------------------------------------------------------------

    def unfit(self) -> Record | None:
        """The first in rank of those that run that can't go on beside those above it, or not without a risk."""
        if not self._supply.swaps:
            return None
        used, total = 0, self._supply.pages.total
        for record in self._in_rank():
            grows = self._supply.grow(record)
            number = self._supply.pages.promised(record.seq)
            if grows and used + number <= total:
                used += number
            elif record.slices or not record.stepped or not self._supply.is_ready(record):
                return record
        return None

    # -- pages --------------------------------------------------------------------------------------------------------

    def worked(self) -> None:
        """A slice or a step has run; what is on its way may come before the next one."""
        self._moved = self._supply.pages.moving if self._supply.swaps else 0

    def serve(self, is_out: Callable[[Record], bool]) -> Served:
        """Pages for those that run, in rank; `is_out` says of a parked one whether the engine has let go of it."""
        served = Served()
        if not self._supply.swaps:
            for record in self._rows:
                self._grant(record, self._supply.goal(record), served)
            return served
        running = self._in_rank()
        budget = self._bring_all(running, served)
        if self._finishes is None and not any(self._supply.is_ready(record) for record in running):
            # Nobody is held up by moves, as nobody could run.
            self._moved = self._supply.pages.moving
            budget = self._bring_all(running, served)
        if not served.lacking:
            self._look_ahead(running, served)
        served.lacking -= self._supply.pages.leaving_now
        if served.lacking > 0:
            self._make_room(is_out, budget, served)
        served.finishes = self._still_finishes()
        return served

    def _still_finishes(self) -> Record | None:
        """Once begun, a half-done chunk that is in the way is read to its end."""
        record = self._finishes
        if record is None or not (record.state is State.PARKED_READING and record.done):
            self._finishes = None
        return self._finishes

    def _in_rank(self) -> list[Record]:
        return sorted(self._rows, key=lambda record: record.rank)

    def _bring_all(self, running: Iterable[Record], served: Served) -> int:
        """Pages for each in turn; how many more may be moved."""
        served.lacking = 0
        budget = max(0, self._limit - max(self._moved, self._supply.pages.moving))
        for record in running:
            budget -= self._bring(record, budget, served)
        return budget

    def _bring(self, record: Record, budget: int, served: Served) -> int:
        """Its pages from the arena, and those that it was promised; how many are moved."""
        pages, seq = self._supply.pages, record.seq
        back = pages.in_arena(seq)
        number = min(back, budget, pages.free)
        if number:
            served.moves.append(pages.swap_in(seq, number))
            self._moved += number
        lacks = back - number + pages.leaving(seq)
        new = pages.promised(seq) - pages.count(seq)
        granted = min(new, pages.free - lacks) if pages.free > lacks else 0
        self._grant(record, pages.count(seq) + granted, served)
        served.lacking += lacks + new - granted
        return number

    def _make_room(self, is_out: Callable[[Record], bool], budget: int, served: Served) -> None:
        """Out of the pages of those that are parked, the last in rank first."""
        pages = self._supply.pages
        half_done, waits = None, bool(pages.moving) or budget <= 0
        for record in self._parked():
            places = pages.movable(record.seq)
            if record.reads and record.done:
                # It is read to its chunk's end first: whoever needs its workspace must find its pages here.
                half_done = half_done or record
            elif not is_out(record):
                waits = waits or bool(places)
            elif places := places[: max(0, min(served.lacking, budget, pages.free_slots))]:
                served.moves.append(pages.swap_out(record.seq, places))
                self._moved += len(places)
                served.lacking -= len(places)
                budget -= len(places)
        if not waits and not served.moves:
            self._finishes = half_done

    def _parked(self) -> list[Record]:
        """The last in rank first."""
        running = {record.seq for record in self._rows}
        parked = (record for record in self._started.values() if record.seq not in running)
        return sorted(parked, key=lambda record: record.rank, reverse=True)

    def _look_ahead(self, running: Iterable[Record], served: Served) -> None:
        """What comes after the next chunk or token, from what nobody else needs."""
        pages = self._supply.pages
        spare = pages.total - sum(pages.promised(record.seq) for record in running)
        for record in running:
            spare -= self._supply.look_ahead(record, min(spare, pages.free))
            self._grant(record, pages.promised(record.seq), served)

    def _grant(self, record: Record, goal: int, served: Served) -> None:
        if (grant := self._supply.grant(record, goal)) is not None:
            served.give(grant)
