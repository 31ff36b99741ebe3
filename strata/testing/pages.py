"""What the pages of a scripted engine would hold, and who holds them.

A room of its own because a page that is shared too early, or that was given to another meanwhile, gives wrong answers
that a script can't show: so here it is an error.  Knows no step and no time.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata.errors import StrataError
from strata.messages import Seq


class ProtocolError(StrataError):
    """The engine was told something that no right dispatcher says."""


class ScriptedPages:
    """Pages, each held by one sequence that may write it, or by any number that read it; and an arena of slots.

    Slot n has the number `total` + n.
    """

    def __init__(self, total: int, page_tokens: int, slots: int = 0) -> None:
        self.total = total
        self._slots = slots
        self._page_tokens = page_tokens
        # Lists, as most have one: thousands of sets would be taken for the memory of what is tested with it.
        self._holders: dict[int, list[Seq]] = {}
        self._contents: dict[int, int] = {}
        """A hash of all tokens up to the page's end, of those that were read and not granted since."""

    def __repr__(self) -> str:
        return f"<ScriptedPages {self.held} held of {self.total}, {len(self._contents)} with what was read>"

    @property
    def held(self) -> int:
        return sum(place < self.total for place in self._holders)

    @property
    def held_slots(self) -> int:
        return len(self._holders) - self.held

    def grant(self, seq: Seq, pages: tuple[int, ...]) -> None:
        """To be written by it alone.  Raises ProtocolError."""
        for page in pages:
            self._check(seq, page)
            self._take(seq, page)

    def share(self, seq: Seq, pages: tuple[int, ...], tokens: tuple[int, ...]) -> None:
        """To be read, as the beginning of these tokens.  Raises ProtocolError if that is not what they hold."""
        before = 0
        for place, page in enumerate(pages):
            self._check(seq, page)
            before = self._hash(before, place, tokens)
            if self._contents.get(page) != before:
                raise ProtocolError(f"sequence {seq} counts on page {page}, which does not hold its tokens")
            self._holders.setdefault(page, []).append(seq)
        if len(set(pages)) != len(pages):
            raise ProtocolError(f"sequence {seq} knows a page twice: {pages}")

    def read(self, pages: Sequence[int], tokens: tuple[int, ...], start: int, end: int) -> None:
        """The positions start .. end - 1 of a prompt were read: each page that this fills holds its beginning."""
        for place in range(start // self._page_tokens, end // self._page_tokens):
            before = self._contents[pages[place - 1]] if place else 0
            self._contents[pages[place]] = self._hash(before, place, tokens)

    def take_back(self, seq: Seq, pages: Sequence[int]) -> None:
        """What they hold stays until they are granted."""
        for page in pages:
            self._holders[page].remove(seq)
            if not self._holders[page]:
                del self._holders[page]

    def begin_move(self, seq: Seq, sources: Sequence[int], targets: Sequence[int]) -> None:
        """From pages to slots, or the other way.  Raises ProtocolError."""
        if len(sources) != len(targets) or len(set(sources)) != len(sources):
            raise ProtocolError(f"sequence {seq} can't be moved from {sources} to {targets}")
        for place in sources:
            if self._holders.get(place) != [seq]:
                raise ProtocolError(f"sequence {seq} has no {self._name(place)} of its own")
        for place in targets:
            if not 0 <= place < self.total + self._slots:
                raise ProtocolError(f"sequence {seq} can't be moved to {self._name(place)}: there is none")
            self._take(seq, place)

    def end_move(self, seq: Seq, sources: Sequence[int], targets: Sequence[int]) -> None:
        """The targets hold what the sources held, and the sources are free."""
        for source, target in zip(sources, targets, strict=True):
            if source in self._contents:
                self._contents[target] = self._contents[source]
        self.take_back(seq, sources)

    def _take(self, seq: Seq, place: int) -> None:
        if place in self._holders:
            raise ProtocolError(f"sequence {seq} was granted {self._name(place)}; {min(self._holders[place])} holds it")
        self._holders[place] = [seq]
        self._contents.pop(place, None)

    def _name(self, place: int) -> str:
        return f"page {place}" if place < self.total else f"slot {place - self.total}"

    def _check(self, seq: Seq, page: int) -> None:
        if not 0 <= page < self.total:
            raise ProtocolError(f"sequence {seq} was granted page {page}; there are {self.total}")

    def _hash(self, before: int, place: int, tokens: tuple[int, ...]) -> int:
        return hash((before, tokens[place * self._page_tokens : (place + 1) * self._page_tokens]))
