"""What the engine is told to run: the step that follows from who runs, and whom the engine has let go of.

Knows rows, pages and what was said before; no rule of who should run.
"""

from __future__ import annotations

from collections.abc import Mapping

from strata.config import SchedulerSettings
from strata.messages import Seq, Step
from strata.scheduling.record import Record
from strata.scheduling.rows import Rows
from strata.scheduling.steps import Says, Steps, members
from strata.scheduling.supply import Supply


class Saying:
    """`started` are all that the engine knows."""

    def __init__(
        self, settings: SchedulerSettings, rows: Rows, supply: Supply, steps: Steps, started: Mapping[Seq, Record]
    ) -> None:
        self._settings = settings
        self._rows = rows
        self._supply = supply
        self._steps = steps
        self._started = started

    def __repr__(self) -> str:
        return f"<Saying {self._steps}>"

    def say(self, *, stops: bool, finishes: Record | None, parks: bool, now: float) -> Step | None:
        """The next step message, if it differs from the newest.

        `stops`: the reader is to stop at its chunk's end.  `finishes` is read to its chunk's end before all others.
        `parks`: somebody was parked.
        """
        before = self._steps.newest
        said = self._steps.say(self._says(stops, finishes), parks=parks, now=now)
        if said is not None and self._supply.swaps:
            # Only whose pages may move is asked whether the engine runs it still.
            for seq in members(before) - members(said):
                if (record := self._started.get(seq)) is not None:
                    record.left = said.n
            for seq in members(said):
                self._started[seq].stepped = True
        return said

    def has_let_go(self, record: Record) -> bool:
        """Whether the engine will not run it, so that its pages may be moved."""
        return record.seq not in members(self._steps.newest) and self._steps.has_begun(record.left)

    def _says(self, stops: bool, finishes: Record | None) -> Says:
        """All that run and have on the device what they hold."""
        reader, answers = self._rows.reader, self._rows.answers
        if self._supply.swaps:
            answers = tuple(record for record in answers if not self._supply.away(record))
            reader = reader if reader is not None and not self._supply.away(reader) else None
        until = self._chunk_end(reader) if reader is not None and stops else None
        if finishes is not None and (reader is None or self._may_pause(reader)):
            reader, until = finishes, finishes.chunk_end
        return (
            tuple([record.seq for record in answers]),
            None if reader is None else reader.seq,
            until,
            self._settings.read_share,
            self._settings.decode_gap_s if reader is not None and reader.short else 0.0,
        )

    def _may_pause(self, reader: Record) -> bool:
        """Whether it has run a slice, or can't run."""
        return reader.slices > 0 or not reader.stepped or not self._supply.is_ready(reader)

    def _chunk_end(self, reader: Record) -> int | None:
        """Where the reader is to stop by itself, so that it gives way at the end of a chunk (`preempt = chunk`).

        While a step that says so is on its way, only the engine knows which chunk it will meet: that one stays.
        """
        until = self._steps.will_end(reader.seq) or reader.chunk_end
        return None if until >= reader.prompt_tokens else until
