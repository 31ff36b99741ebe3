"""Who owns which page of the device.  Knows numbers, owners and names; no tokens, no order, no device.

The engine owns the memory behind the numbers and decides nothing about it; this is the only count there is.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define

from strata.messages import Seq
from strata.scheduling.cache import PrefixCache


@define
class _Holding:
    worst: int
    pages: list[int]
    shared: int
    """So many of them, the first ones, are in the cache."""


class Pages:
    """Each page is free or has an owner, or several where it holds the beginning of all their prompts.

    An owner first reserves its worst case, what it shares counted in full, and is then granted page by page.  The worst
    cases of all owners fit together, so a grant within one never fails: cached pages that nobody holds go for it.
    Pages come back all at once.
    """

    __slots__ = ("_cache", "_free", "_holdings", "_reserved", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        # The lowest number is given first: a list is popped at its end.
        self._free = list(range(total - 1, -1, -1))
        self._cache = PrefixCache()
        self._holdings: dict[Seq, _Holding] = {}
        self._reserved = 0

    def __repr__(self) -> str:
        return f"<Pages {self.free} free, {self.held} held by {len(self._holdings)}>"

    @property
    def free(self) -> int:
        """How many nobody holds, those in the cache among them."""
        return len(self._free) + self._cache.idle

    @property
    def cached(self) -> int:
        """Free ones that still hold the beginning of a prompt."""
        return self._cache.idle

    @property
    def held(self) -> int:
        return self.total - self.free

    @property
    def reserved(self) -> int:
        """The sum of the worst cases of all owners."""
        return self._reserved

    @property
    def room(self) -> int:
        """How many pages a new owner could reserve."""
        return self.total - self._reserved

    def of(self, seq: Seq) -> tuple[int, ...]:
        """Its pages, in the order of its tokens; none if it is no owner."""
        holding = self._holdings.get(seq)
        return () if holding is None else tuple(holding.pages)

    def count(self, seq: Seq) -> int:
        holding = self._holdings.get(seq)
        return 0 if holding is None else len(holding.pages)

    def holders(self, page: int) -> int:
        """How many hold it."""
        if page in self._cache:
            return self._cache.pins(page)
        return sum(page in holding.pages for holding in self._holdings.values())

    def known(self, prefix: Sequence[bytes]) -> tuple[int, ...]:
        """The pages that hold this beginning of a prompt now, as far as there are any."""
        return self._cache.find(prefix)

    def reserve(self, seq: Seq, worst: int, prefix: Sequence[bytes] = ()) -> tuple[int, ...]:
        """Make it an owner that may hold up to `worst` pages, and holds those that are known of its prompt.

        Raises ValueError if that doesn't fit, or it is one.
        """
        if seq in self._holdings:
            raise ValueError(f"sequence {seq} has reserved its pages already")
        known = self.known(prefix)
        if not len(known) <= worst <= self.room:
            raise ValueError(f"{worst} pages don't fit beside the {self._reserved} of {self.total} that are reserved")
        for page in known:
            self._cache.pin(page)
        self._holdings[seq] = _Holding(worst, list(known), len(known))
        self._reserved += worst
        return known

    def grant(self, seq: Seq, number: int) -> tuple[int, ...]:
        """So many more pages for this owner.  Raises ValueError beyond what it reserved, KeyError if it is no owner."""
        holding = self._holdings[seq]
        if not 0 <= number <= holding.worst - len(holding.pages):
            raise ValueError(
                f"sequence {seq} holds {len(holding.pages)} of {holding.worst} pages and asks for {number}"
            )
        pages = tuple(self._free.pop() if self._free else self._cache.evict() for _ in range(number))
        holding.pages.extend(pages)
        return pages

    def share(self, seq: Seq, prefix: Sequence[bytes]) -> None:
        """Its first pages hold this, read and never to be written again: others may read them too.

        Where others have read the same meanwhile, its own page stays its own, and so do those after it: nobody could
        come to them without holding all that is before.
        """
        holding = self._holdings[seq]
        for name, page in zip(prefix[holding.shared :], holding.pages[holding.shared :], strict=False):
            if not self._cache.enter(name, page):
                return
            holding.shared += 1

    def release(self, seq: Seq) -> int:
        """All of its pages are free at once, the last one first; how many there were.  0 if it is no owner."""
        holding = self._holdings.pop(seq, None)
        if holding is None:
            return 0
        for place in range(len(holding.pages) - 1, -1, -1):
            page = holding.pages[place]
            if place < holding.shared:
                self._cache.unpin(page)
            else:
                self._free.append(page)
        self._reserved -= holding.worst
        return len(holding.pages)
