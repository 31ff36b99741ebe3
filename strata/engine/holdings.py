"""What is held and by whom: pages that were granted or are shared, and workspaces for half-done chunks.

A room of its own because a page or a workspace that two sequences write is a wrong answer that nobody sees.  Decides
nothing: which page goes to whom is the ledger's matter, on the other side of the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

from attrs import frozen

from strata.errors import SequenceFailed
from strata.messages import Seq


class Pages:
    """Who holds which of `total` pages or slots: one that may write it, or any number that read it."""

    def __init__(self, total: int, name: str = "page") -> None:
        self.total = total
        self._name = name
        self._holders: dict[int, set[Seq]] = {}

    def __repr__(self) -> str:
        return f"<Pages ({self._name}s) {self.total - len(self._holders)} free, {len(self._holders)} held>"

    @property
    def held(self) -> int:
        return len(self._holders)

    def holders(self, page: int) -> Set[Seq]:
        return self._holders.get(page, frozenset())

    def give(self, seq: Seq, pages: tuple[int, ...]) -> None:
        """To write them.  All or none.  Raises SequenceFailed if one does not exist or is held already."""
        self._check(pages)
        for page in pages:
            if page in self._holders:
                raise SequenceFailed(
                    f"{self._name} {page} was granted while sequence {min(self._holders[page])} holds it"
                )
        self.share(seq, pages)

    def share(self, seq: Seq, pages: tuple[int, ...]) -> None:
        """To read them, whoever else holds them.  All or none.  Raises SequenceFailed if one does not exist."""
        self._check(pages)
        for page in pages:
            self._holders.setdefault(page, set()).add(seq)

    def take_back(self, seq: Seq, pages: Iterable[int]) -> None:
        for page in pages:
            self._holders[page].remove(seq)
            if not self._holders[page]:
                del self._holders[page]

    def _check(self, pages: tuple[int, ...]) -> None:
        if len(set(pages)) != len(pages):
            raise SequenceFailed(f"the same {self._name} twice in one message: {pages}")
        for page in pages:
            if not 0 <= page < self.total:
                raise SequenceFailed(f"{self._name} {page} is not one of {self.total}")


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


@frozen
class Usage:
    """What is in use now, for those who look for leaks."""

    sequences: int
    pages: int
    half_chunks: int
    workspaces_free: int
    slots: int = 0
    moves: int = 0
    """Of pages, that are not done."""
