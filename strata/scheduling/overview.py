"""The scheduler as people see it: counts and sums at one moment.  Looks, and changes nothing but its own counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from attrs import define, field

from strata.scheduling.decision import Statistics
from strata.scheduling.lending import Lending
from strata.scheduling.lifecycle import State
from strata.scheduling.pace import Pace
from strata.scheduling.placing import Placing
from strata.scheduling.purse import Purses
from strata.scheduling.record import Record
from strata.scheduling.rows import Rows
from strata.scheduling.steps import Steps
from strata.scheduling.supply import Supply
from strata.scheduling.waiting import Waiting

PARKED: Final = frozenset({State.PARKED_READING, State.PARKED_DECODING})


@define(kw_only=True)
class Overview:
    """Of these; what is counted here only ever grows."""

    waiting: Waiting
    rows: Rows
    purses: Purses
    pace: Pace
    steps: Steps
    supply: Supply
    lending: Lending
    placing: Placing
    workspaces: int
    ended: Counter[str] = field(factory=Counter)
    """By outcome."""

    def statistics(
        self, now: float, *, started: Iterable[Record], ended: int, refused: Mapping[str, int]
    ) -> Statistics:
        """`ended`: those whose end was not taken yet."""
        started = tuple(started)
        states = Counter({str(State.QUEUED): self.waiting.queued, str(State.DONE): ended})
        states.update(str(record.state) for record in started)
        pages, pace, give_way = self.supply.pages, self.pace, self.steps.give_way
        first = self.waiting.first_queued()
        return Statistics(
            at=now,
            states={state: n for state, n in states.items() if n},
            running=len(self.rows),
            max_running=self.rows.limit,
            queued=self.waiting.queued,
            queued_tokens=self.waiting.queued_tokens,
            queued_for_s=0.0 if first is None else now - first.arrived,
            blocked=self.lending.waiting,
            short=self.lending.short,
            pages_total=pages.total,
            pages_free=pages.free,
            pages_cached=pages.cached,
            pages_held=pages.held,
            pages_reserved=pages.reserved,
            pages_moving=pages.moving,
            pages_parked=len({page for r in started if r.state in PARKED for page in pages.of(r.seq)}),
            slots_total=pages.slots,
            slots_free=pages.free_slots,
            half_read=sum(1 for record in started if record.reads and record.done),
            workspaces=self.workspaces,
            purses=dict(self.purses.all),
            steps=self.steps.newest.n,
            parks=dict(self.placing.parks),
            resumes=self.placing.resumes,
            pages_out=pace.pages_out,
            pages_in=pace.pages_in,
            ended=dict(self.ended),
            refused=dict(refused),
            read_tokens=pace.read_tokens,
            cached_tokens=pace.cached_tokens,
            written_tokens=pace.written_tokens,
            engine_s=pace.engine_s,
            longest_chunk_s=pace.longest_chunk_s,
            longest_step_s=pace.longest_step_s,
            give_way_count=give_way.count,
            give_way_s=give_way.total_s,
            give_way_longest_s=give_way.longest_s,
        )
