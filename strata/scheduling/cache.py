"""Which pages hold the beginning of a prompt that was read already, and who relies on them.

Knows names, pages and how many hold each; not whose they are, and not when one is needed.  A page is *pinned* while
somebody holds it and *idle* after that, until it is evicted for another use.

Whoever holds a page holds all those before it in its prompt too, and lets go of the last one first.  So what comes
after an idle page is idle and was let go before it: the one that was idle longest is always a last one, and may go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Pages by the name of what they hold (`scheduling.prefix`)."""

    __slots__ = ("_idle", "_names", "_pages", "_pins", "several")

    def __init__(self) -> None:
        self._pages: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        self._pins: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        """In the order in which they may go."""
        self.several = 0
        """How many are held by more than one."""

    def __contains__(self, page: int) -> bool:
        return page in self._names

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<PrefixCache {self.idle} idle of {len(self)} pages>"

    @property
    def idle(self) -> int:
        """How many nobody holds."""
        return len(self._idle)

    def find(self, prefix: Sequence[bytes]) -> tuple[int, ...]:
        """The pages that hold this beginning, as far as there are any."""
        found: list[int] = []
        for name in prefix:
            if (page := self._pages.get(name)) is None:
                break
            found.append(page)
        return tuple(found)

    def enter(self, name: bytes, page: int) -> bool:
        """This page, which one holds, has what the name says; False if another has it already."""
        if name in self._pages:
            return False
        self._pages[name], self._names[page], self._pins[page] = page, name, 1
        return True

    def pins(self, page: int) -> int:
        """How many hold it."""
        return self._pins.get(page, 0)

    def pin(self, page: int) -> None:
        """One more holds it."""
        self._idle.pop(page, None)
        self._pins[page] = self._pins.get(page, 0) + 1
        self.several += self._pins[page] == 2

    def unpin(self, page: int) -> None:
        """One holds it no more."""
        self._pins[page] -= 1
        self.several -= self._pins[page] == 1
        if not self._pins[page]:
            del self._pins[page]
            self._idle[page] = None

    def evict(self) -> int:
        """The page that may go first; it is not known here any more.  Raises KeyError if all are held."""
        page, _ = self._idle.popitem(last=False)
        del self._pages[self._names.pop(page)]
        return page
