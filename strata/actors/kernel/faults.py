"""What went wrong, taken out of what Trio wraps around it: groups, and cancellations beside an error.

Knows no actor.
"""

from __future__ import annotations

import trio


def lone(error: BaseException) -> BaseException:
    """The one error in a group, or in groups, of one; else the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def without_cancelled(error: BaseException) -> BaseException | None:
    """What is left when Trio's cancellations are taken out, a lone error as itself; None if nothing is."""
    if isinstance(error, trio.Cancelled):
        return None
    if isinstance(error, BaseExceptionGroup):
        rest = error.split(trio.Cancelled)[1]
        return None if rest is None else lone(rest)
    return error
