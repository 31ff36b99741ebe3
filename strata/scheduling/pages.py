"""Who owns which page of the device.  Knows numbers and owners; no tokens, no order, no device.

The engine owns the memory behind the numbers and decides nothing about it; this is the only count there is.
"""

from __future__ import annotations

from attrs import define

from strata.messages import Seq


@define
class _Holding:
    worst: int
    pages: list[int]


class Pages:
    """Each page is free or has one owner.  An owner first reserves its worst case and is then granted page by page.

    The worst cases of all owners fit together, so a grant within one never fails.  Pages come back all at once.
    """

    __slots__ = ("_free", "_holdings", "_reserved", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        # The lowest number is given first: a list is popped at its end.
        self._free = list(range(total - 1, -1, -1))
        self._holdings: dict[Seq, _Holding] = {}
        self._reserved = 0

    def __repr__(self) -> str:
        return f"<Pages {self.free} free, {self.held} held by {len(self._holdings)}>"

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def held(self) -> int:
        return self.total - len(self._free)

    @property
    def reserved(self) -> int:
        """The sum of the worst cases of all owners."""
        return self._reserved

    @property
    def room(self) -> int:
        """How many pages a new owner could reserve."""
        return self.total - self._reserved

    def of(self, seq: Seq) -> tuple[int, ...]:
        """Its pages, in the order in which they were granted; none if it is no owner."""
        holding = self._holdings.get(seq)
        return () if holding is None else tuple(holding.pages)

    def count(self, seq: Seq) -> int:
        holding = self._holdings.get(seq)
        return 0 if holding is None else len(holding.pages)

    def reserve(self, seq: Seq, worst: int) -> None:
        """Make it an owner that may hold up to `worst` pages.  Raises ValueError if that doesn't fit, or it is one."""
        if seq in self._holdings:
            raise ValueError(f"sequence {seq} has reserved its pages already")
        if not 0 <= worst <= self.room:
            raise ValueError(f"{worst} pages don't fit beside the {self._reserved} of {self.total} that are reserved")
        self._holdings[seq] = _Holding(worst, [])
        self._reserved += worst

    def grant(self, seq: Seq, number: int) -> tuple[int, ...]:
        """So many more pages for this owner.  Raises ValueError beyond what it reserved, KeyError if it is no owner."""
        holding = self._holdings[seq]
        if not 0 <= number <= holding.worst - len(holding.pages):
            raise ValueError(
                f"sequence {seq} holds {len(holding.pages)} of {holding.worst} pages and asks for {number}"
            )
        pages = tuple(self._free.pop() for _ in range(number))
        holding.pages.extend(pages)
        return pages

    def release(self, seq: Seq) -> int:
        """All of its pages are free at once; how many there were.  0 if it is no owner."""
        holding = self._holdings.pop(seq, None)
        if holding is None:
            return 0
        self._free.extend(reversed(holding.pages))
        self._reserved -= holding.worst
        return len(holding.pages)
