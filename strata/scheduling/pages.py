"""Who owns which page, and where it lies.  Knows numbers, owners and names; no tokens, no order, no device.

The engine owns the memory behind the numbers and decides nothing about it; this is the only count there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, field

from strata.messages import Seq, SwapIn, SwapOut
from strata.scheduling.banker import is_safe
from strata.scheduling.cache import PrefixCache

_AWAY = -1


@define
class _Holding:
    worst: int
    expected: int
    pages: list[int]
    """In the order of its tokens; _AWAY: not on the device, or on its way."""
    shared: int
    """So many of them, the first ones, are in the cache."""
    promised: int
    """It may hold so many: this many were found to be safe."""
    slots: dict[int, int] = field(factory=dict)
    """By place, where in the arena a page lies."""
    leaving: dict[int, int] = field(factory=dict)
    """By page, its place, of those on their way to the arena; their slots are in `slots` already."""
    coming: dict[int, int] = field(factory=dict)
    """By place, the page to which it is on its way; its slot is in `slots` still."""


class Pages:
    """Each page is free or has an owner, or several where it holds the beginning of all their prompts.

    `total` pages lie on the device; `slots` more can lie in the arena, where nobody can use them.  An owner reserves
    what it is expected to take, what it shares counted in full, and is then promised and granted page by page.

    Without an arena it is expected to take its worst case, and all worst cases fit together.  With one, a promise is
    kept only if it is *safe*: everybody can then still get its worst case, one after another, however all that others
    hold is moved.  One place is set aside for that, so that something can always be moved.
    """

    def __init__(self, total: int, slots: int = 0) -> None:
        self.total = total
        self.slots = slots
        # The lowest number is given first: a list is popped at its end.
        self._free = list(range(total - 1, -1, -1))
        self._free_slots = list(range(slots - 1, -1, -1))
        self._cache = PrefixCache()
        self._holdings: dict[Seq, _Holding] = {}
        self._reserved = 0

    def __repr__(self) -> str:
        return f"<Pages {self.free} free, {self.held} held by {len(self._holdings)}>"

    # -- how many ---------------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """How many on the device nobody holds, those in the cache among them."""
        return len(self._free) + self._cache.idle

    @property
    def cached(self) -> int:
        """Free ones that still hold the beginning of a prompt."""
        return self._cache.idle

    @property
    def held(self) -> int:
        return self.total - self.free

    @property
    def free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def moving(self) -> int:
        """How many are on their way."""
        return sum(len(holding.leaving) + len(holding.coming) for holding in self._holdings.values())

    @property
    def places(self) -> int:
        """How many can be lent at all."""
        return self.total + max(0, self.slots - 1)

    @property
    def reserved(self) -> int:
        """What all owners are expected to take."""
        return self._reserved

    @property
    def room(self) -> int:
        """How many pages a new owner could reserve."""
        return self.places - self._reserved

    # -- of one owner -----------------------------------------------------------------------------------------------

    def of(self, seq: Seq) -> tuple[int, ...]:
        """Its pages on the device, in the order of its tokens; none if it is no owner."""
        holding = self._holdings.get(seq)
        return () if holding is None else tuple(page for page in holding.pages if page != _AWAY)

    def count(self, seq: Seq) -> int:
        """How many it holds, wherever they are."""
        holding = self._holdings.get(seq)
        return 0 if holding is None else len(holding.pages)

    def promised(self, seq: Seq) -> int:
        return self._holdings[seq].promised

    def away(self, seq: Seq) -> int:
        """How many of its pages are not on the device, those on their way from or to it among them."""
        return len(self._holdings[seq].slots)

    def in_arena(self, seq: Seq) -> int:
        """How many lie in the arena, and are not on their way."""
        holding = self._holdings[seq]
        return len(holding.slots) - len(holding.leaving) - len(holding.coming)

    @property
    def leaving_now(self) -> int:
        """How many will be free, since they are on their way to the arena."""
        return sum(len(holding.leaving) for holding in self._holdings.values())

    def leaving(self, seq: Seq) -> int:
        """How many are on their way to the arena."""
        return len(self._holdings[seq].leaving)

    def holders(self, page: int) -> int:
        """How many hold it."""
        if page in self._cache:
            return self._cache.pins(page)
        return sum(page in (*holding.pages, *holding.leaving) for holding in self._holdings.values())

    # -- coming and going -------------------------------------------------------------------------------------------

    def known(self, prefix: Sequence[bytes], worst: int = 0) -> tuple[int, ...]:
        """The pages that hold this beginning of a prompt now, as far as one that takes `worst` pages may share them.

        What several hold stays on the device.  So much is shared only as leaves room for the longest there is.
        """
        found = self._cache.find(prefix)
        if self.slots and self._stays(found) + max(worst, self._longest()) > self.total:
            found = tuple(page for page in found if self._cache.pins(page) > 1)
        return found

    def reserve(
        self, seq: Seq, worst: int, prefix: Sequence[bytes] = (), *, expected: int | None = None
    ) -> tuple[int, ...]:
        """Make it an owner that may hold up to `worst` pages, and holds those that are known of its prompt.

        Raises ValueError if what is expected (None: the worst) doesn't fit, or it is an owner already.
        """
        if seq in self._holdings:
            raise ValueError(f"sequence {seq} has reserved its pages already")
        known = self.known(prefix, worst)
        expected = worst if expected is None else expected
        if not len(known) <= worst <= self.total or not len(known) <= expected <= self.room:
            raise ValueError(f"{expected} pages don't fit beside the {self._reserved} of {self.places} reserved")
        for page in known:
            self._cache.pin(page)
        self._holdings[seq] = _Holding(worst, expected, list(known), len(known), len(known))
        self._reserved += expected
        return known

    def expect(self, seq: Seq, expected: int) -> None:
        """It is now expected to take so many."""
        holding = self._holdings[seq]
        self._reserved += expected - holding.expected
        holding.expected = expected

    def may_start(self, worst: int, number: int, known: Sequence[int]) -> bool:
        """Whether a new owner could be promised so many pages, and the longest still has its room."""
        if not self.slots:
            return True
        fits = self._stays(known) + max(worst, self._longest()) <= self.total
        return fits and self._is_safe([(worst - number, number)])

    def may_hold(self, seq: Seq, number: int) -> bool:
        """Whether it could be promised so many in all."""
        holding = self._holdings[seq]
        if number <= holding.promised or not self.slots:
            return number <= holding.worst
        before, holding.promised = holding.promised, number
        safe = number <= holding.worst and self._is_safe()
        holding.promised = before
        return safe

    def promise(self, seq: Seq, number: int) -> None:
        """It may hold so many from now on, which is safe; never less than it has."""
        holding = self._holdings[seq]
        holding.promised = max(number, len(holding.pages))

    def grant(self, seq: Seq, number: int) -> tuple[int, ...]:
        """So many more pages for this owner.

        Raises ValueError beyond its worst case, or what is free; KeyError if it is no owner.
        """
        holding = self._holdings[seq]
        if not 0 <= number <= holding.worst - len(holding.pages):
            raise ValueError(
                f"sequence {seq} holds {len(holding.pages)} of {holding.worst} pages and asks for {number}"
            )
        if number > self.free:
            raise ValueError(f"sequence {seq} asks for {number} pages and {self.free} are free")
        pages = tuple(self._take_several(number))
        holding.pages.extend(pages)
        holding.promised = max(holding.promised, len(holding.pages))
        return pages

    def share(self, seq: Seq, prefix: Sequence[bytes]) -> None:
        """Its first pages hold this, read and never to be written again: others may read them too.

        Where others have read the same meanwhile, its own page stays its own, and so do those after it: nobody could
        come to them without holding all that is before.
        """
        holding = self._holdings[seq]
        for name, page in zip(prefix[holding.shared :], holding.pages[holding.shared :], strict=False):
            if page == _AWAY or not self._cache.enter(name, page):
                return
            holding.shared += 1

    def release(self, seq: Seq) -> int:
        """All of its pages and slots are free at once, the last one first; how many pages there were.

        0 if it is no owner.  What is on its way is free too: whoever gets it is told after the engine was told to
        forget this one, and with it its moves.
        """
        holding = self._holdings.pop(seq, None)
        if holding is None:
            return 0
        pages = list(holding.pages)
        for page, place in holding.leaving.items():
            pages[place] = page
        for place, page in holding.coming.items():
            pages[place] = page
        if self._cache:
            for page in reversed(pages):
                if page != _AWAY:
                    self._give_back(page)
        else:
            self._free.extend([page for page in reversed(pages) if page != _AWAY])
        self._free_slots.extend(holding.slots.values())
        self._reserved -= holding.expected
        return len(pages)

    # -- moving -----------------------------------------------------------------------------------------------------

    def movable(self, seq: Seq) -> tuple[int, ...]:
        """Places of its pages on the device that it alone holds, the last one first."""
        holding = self._holdings[seq]
        found = []
        for place in range(len(holding.pages) - 1, -1, -1):
            page = holding.pages[place]
            if page == _AWAY:
                continue
            if place < holding.shared and self._cache.pins(page) > 1:
                break
            found.append(place)
        return tuple(found)

    def swap_out(self, seq: Seq, places: Iterable[int]) -> SwapOut:
        """These go to the arena.  Raises IndexError if there are no slots left."""
        holding = self._holdings[seq]
        pages, slots = [], []
        for place in places:
            page, slot = holding.pages[place], self._free_slots.pop()
            holding.pages[place] = _AWAY
            holding.leaving[page], holding.slots[place] = place, slot
            holding.shared = min(holding.shared, place)
            pages.append(page)
            slots.append(slot)
        return SwapOut(seq, tuple(pages), tuple(slots))

    def swap_in(self, seq: Seq, number: int) -> SwapIn:
        """So many of those that lie in the arena come back, the first ones first; there must be as many free pages."""
        holding = self._holdings[seq]
        moving = {*holding.leaving.values(), *holding.coming}
        places = [place for place in sorted(holding.slots) if place not in moving][:number]
        for place in places:
            holding.coming[place] = self._take()
        slots = tuple(holding.slots[place] for place in places)
        return SwapIn(seq, slots, tuple(holding.coming[place] for place in places))

    def swapped_out(self, seq: Seq, pages: Iterable[int]) -> None:
        """They lie in the arena.  Nothing happens if it is no owner any more."""
        if (holding := self._holdings.get(seq)) is not None:
            for page in pages:
                del holding.leaving[page]
                self._give_back(page)

    def swapped_in(self, seq: Seq, pages: Iterable[int]) -> None:
        """They are on the device again."""
        if (holding := self._holdings.get(seq)) is not None:
            places = {page: place for place, page in holding.coming.items()}
            for page in pages:
                place = places[page]
                del holding.coming[place]
                holding.pages[place] = page
                self._free_slots.append(holding.slots.pop(place))

    # -- inside -----------------------------------------------------------------------------------------------------

    def _take(self) -> int:
        return self._free.pop() if self._free else self._cache.evict()

    def _take_several(self, number: int) -> list[int]:
        taken = self._free[: -number - 1 : -1]
        del self._free[len(self._free) - len(taken) :]
        return taken + [self._cache.evict() for _ in range(number - len(taken))]

    def _give_back(self, page: int) -> None:
        if page in self._cache:
            self._cache.unpin(page)
        else:
            self._free.append(page)

    def _longest(self) -> int:
        return max((holding.worst for holding in self._holdings.values()), default=0)

    def _stays(self, known: Iterable[int] = ()) -> int:
        """How many pages several hold, once these are held by one more."""
        return self._cache.several + sum(self._cache.pins(page) == 1 for page in known)

    def _is_safe(self, more: Iterable[tuple[int, int]] = ()) -> bool:
        accounts = [(h.worst - h.promised, h.promised) for h in self._holdings.values()]
        accounts += more
        return is_safe(self.places - sum(held for _, held in accounts), accounts)
