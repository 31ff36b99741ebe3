"""Whether all that have started can end (the banker's test, E. W. Dijkstra, EWD 108).  Numbers only.

Pages are the one kind of thing that is lent.  Somebody ends at the latest once it holds what it takes at worst, and
then gives back all of it.
"""

from __future__ import annotations

from collections.abc import Iterable


def is_safe(free: int, accounts: Iterable[tuple[int, int]]) -> bool:
    """`accounts`: what each may still ask for, and what it holds.  Whoever asks for least is served first: if that
    fails, no other order helps."""
    for rest, held in sorted(accounts):
        if rest > free:
            return False
        free += held
    return free >= 0
