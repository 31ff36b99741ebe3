"""What is held and by whom: pages that were granted, and workspaces for half-done chunks.

A room of its own because a page or a workspace that two sequences hold is a wrong answer that nobody sees.  Decides
nothing: which page goes to whom is the ledger's matter, on the other side of the messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strata.errors import SequenceFailed
from strata.messages import Seq


class Pages:
    """Who holds which of the engine's `total` pages."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._holders: dict[int, Seq] = {}

    def __repr__(self) -> str:
        return f"<Pages {self.total - len(self._holders)} free, {len(self._holders)} held>"

    @property
    def held(self) -> int:
        return len(self._holders)

    def give(self, seq: Seq, pages: tuple[int, ...]) -> None:
        """All or none.  Raises SequenceFailed if one does not exist or is held already."""
        if len(set(pages)) != len(pages):
            raise SequenceFailed(f"the same page twice in one grant: {pages}")
        for page in pages:
            if not 0 <= page < self.total:
                raise SequenceFailed(f"page {page} is not one of {self.total}")
            if page in self._holders:
                raise SequenceFailed(f"page {page} was granted while sequence {self._holders[page]} holds it")
        self._holders.update(dict.fromkeys(pages, seq))

    def take_back(self, pages: Iterable[int]) -> None:
        for page in pages:
            del self._holders[page]


class Workspaces:
    """The room for half-done chunks, allocated once.  One that is taken must be given back."""

    def __init__(self, rooms: Iterable[Any]) -> None:
        self._free = list(rooms)
        self.total = len(self._free)

    def __repr__(self) -> str:
        return f"<Workspaces {len(self._free)} free of {self.total}>"

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> Any:
        return self._free.pop()

    def give_back(self, room: Any) -> None:
        self._free.append(room)
