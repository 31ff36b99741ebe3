"""Who runs: the one that reads and all that answer.  Knows how many may; not who should."""

from __future__ import annotations

from collections.abc import Iterator

from strata.messages import Seq
from strata.scheduling.lifecycle import State
from strata.scheduling.record import Record


class Rows:
    """At most `limit` run at once, one of them reads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reader: Record | None = None
        self._answers: dict[Seq, Record] = {}
        self._ranked: tuple[Record, ...] | None = ()
        """The same in rank; None: they have to be ordered again."""

    def __len__(self) -> int:
        return len(self._answers) + (self.reader is not None)

    def __iter__(self) -> Iterator[Record]:
        if self.reader is not None:
            yield self.reader
        yield from self._answers.values()

    def __repr__(self) -> str:
        return f"<Rows {len(self)} of {self.limit}>"

    @property
    def free(self) -> int:
        return self.limit - len(self._answers) - (self.reader is not None)

    @property
    def one(self) -> bool:
        """Whether there is but one row, so that a read and an answer stand in each other's way."""
        return self.limit == 1

    @property
    def answers(self) -> tuple[Record, ...]:
        """Those that answer, in rank."""
        if self._ranked is None:
            self._ranked = tuple(sorted(self._answers.values(), key=_by_rank))
        return self._ranked

    @property
    def last(self) -> Record | None:
        """The last in rank of those that answer."""
        return self.answers[-1] if self._answers else None

    def take(self, record: Record) -> None:
        """It runs now, in a row that is free, by its state."""
        if record.state is State.READING:
            assert self.reader is None, "one reads at a time"
            self.reader = record
        else:
            self._answers[record.seq], self._ranked = record, None
        assert self.free >= 0, "a row for each that runs"

    def leave(self, record: Record) -> None:
        if self.reader is record:
            self.reader = None
        else:
            del self._answers[record.seq]
            self._ranked = None

    def joined(self, record: Record) -> None:
        """The reader has read its prompt and answers, in the same row."""
        self.reader = None
        self._answers[record.seq], self._ranked = record, None

    def clear(self) -> None:
        self.reader = None
        self._answers.clear()
        self._ranked = ()


def _by_rank(record: Record) -> tuple[int, float, int]:
    return record.rank
