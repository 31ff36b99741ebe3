"""How long anybody can be made to wait (R12): formulas, and their values where the engine's rates are known.

Knows settings and rates; no request and no decision.  What it promises is held against the scheduler by the tests of
this room, with clients that never stop.
"""

from __future__ import annotations

from math import ceil

from attrs import frozen

from strata.config import Preempt, SchedulerSettings


@frozen(kw_only=True)
class Rates:
    """The slowest that the engine was measured to be (seconds)."""

    chunk_s: float
    slice_s: float
    step_s: float


@frozen
class Line:
    """One promise.  `formula` has the settings in numbers; what only a request or the engine can say has a name."""

    what: str
    formula: str


@frozen
class Bound:
    """The promises of R12 as numbers.  Work is engine time, as a request would take alone (seconds)."""

    settings: SchedulerSettings
    rates: Rates

    @property
    def overrun_s(self) -> float:
        """C + F: how long one that should give way may still go on."""
        return self.rates.chunk_s + self.settings.finish_tokens * self.rates.step_s

    def done_s(self, work_s: float) -> float:
        """One row, from arrival to the end; `work_s`: its own and that of all older ones of its priority."""
        return work_s / self.settings.order_share + 2 * self.settings.pass_burst_s + self.overrun_s

    def share_s(self, seconds: float) -> float:
        """What one has run at least that was the oldest of its priority for so long."""
        return self.settings.order_share * (seconds - 2 * self.settings.pass_burst_s - self.overrun_s)

    def first_token_s(self, read_s: float) -> float:
        """Several rows, one free; `read_s`: to read its own prompt and those of all older ones of its priority."""
        reading = read_s / self.settings.order_share + 2 * self.settings.pass_burst_s + self.rates.chunk_s
        return reading / self.settings.read_share + self.rates.step_s

    @property
    def gap_s(self) -> float:
        """Several rows: between two tokens of an answer that keeps its row."""
        share, step_s = self.settings.read_share, self.rates.step_s
        return step_s + max(step_s * share / (1 - share), self.settings.decode_gap_s) + self.rates.slice_s

    def row_s(self, before: int) -> float:
        """Several rows, all of them taken by answers: for a row, after so many equals that wait already."""
        finish_s = self.settings.finish_tokens * self.rates.step_s
        rounds = ceil(max(before, 1) / max(1, self.settings.max_running - 1))
        return self.settings.turn_wait_s + rounds * (self.settings.quantum_s + finish_s) + self.rates.step_s

    def pages_s(self, held_s: float) -> float:
        """What few pages add, for each of itself and those older that must wait for them.

        `held_s`: the rest of those that have started and hold them, from the time on when nobody may start past it;
        with one row that of the younger ones, as the older ones count already.
        """
        return self.settings.bypass_s + held_s


def lines(settings: SchedulerSettings, rates: Rates | None = None) -> tuple[Line, ...]:
    """The promises that hold with these settings, for people."""
    if settings.preempt is Preempt.OFF:
        return (Line("no bound", "with preempt = off each waits for all that are before it, whatever comes"),)
    work = (_done(settings, rates),) if settings.max_running == 1 else _several_rows(settings, rates)
    found = (*work, _pages(settings), _aged(settings))
    gates = [name for name in ("min_park_tokens", "max_parks") if getattr(settings, name)]
    if gates:
        found += (Line("but", f"{' and '.join(gates)} may keep one in its place for longer"),)
    return found


def _done(settings: SchedulerSettings, rates: Rates | None) -> Line:
    work = f"(own work + that of older equals) / {settings.order_share:g}"
    burst = 2 * settings.pass_burst_s
    if rates is None:
        return Line("one row: done", f"{work} + {burst:g} s + chunk + {settings.finish_tokens} steps")
    return Line("one row: done", f"{work} + {Bound(settings, rates).done_s(0):.3g} s")


def _several_rows(settings: SchedulerSettings, rates: Rates | None) -> tuple[Line, ...]:
    share, rows = settings.read_share, settings.max_running - 1
    reading = f"(reads of it and older equals) / {settings.order_share * share:g}"
    turns = f"(equals before it / {rows}, rounded up)"
    if rates is None:
        first = f"{reading} + ({2 * settings.pass_burst_s:g} s + chunk) / {share:g} + step"
        gap = f"step + the larger of {share / (1 - share):.3g} x step and {settings.decode_gap_s:g} s + slice"
        quantum = f"({settings.quantum_s:g} s + {settings.finish_tokens} steps)"
        row = f"{settings.turn_wait_s:g} s + {turns} x {quantum} + step"
    else:
        bound = Bound(settings, rates)
        round_s = settings.quantum_s + settings.finish_tokens * rates.step_s
        first = f"{reading} + {bound.first_token_s(0):.3g} s"
        gap = f"{bound.gap_s:.3g} s"
        row = f"{settings.turn_wait_s + rates.step_s:.3g} s + {turns} x {round_s:.3g} s"
    return Line("rows: first token", first), Line("rows: longest gap", gap), Line("no row free: more", row)


def _pages(settings: SchedulerSettings) -> Line:
    bypass = f"{settings.bypass_s:g} s + the rest of those that hold them"
    if settings.swap_ratio:
        bypass += f"; a turn is at least {settings.swap_ratio:g} x as long as pages take to come back for it"
    return Line("few pages: more", f"for itself and each older equal that waits for them: {bypass}")


def _aged(settings: SchedulerSettings) -> Line:
    return Line(
        "below others", f"{settings.quantum_s:g} s of engine in every {settings.age_every_s:g} s x levels above it"
    )
