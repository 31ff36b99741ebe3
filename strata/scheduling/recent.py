"""Names seen a while ago.  Knows nothing else of them, and forgets the oldest, so that no client can make it grow."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from strata.messages import Seq

KEPT: Final = 65_536
"""Many times more than can be between a submit and its own withdrawal; a few MiB."""


class Recent:
    """The newest KEPT names that were added."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        # A plain one would have to look over all that it has forgotten, to find its first.
        self._names: OrderedDict[Seq, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, seq: Seq) -> bool:
        return seq in self._names

    def add(self, seq: Seq) -> None:
        self._names[seq] = None
        if len(self._names) > self._kept:
            self._names.popitem(last=False)

    def discard(self, seq: Seq) -> bool:
        """Whether it was there."""
        if seq not in self._names:
            return False
        del self._names[seq]
        return True
