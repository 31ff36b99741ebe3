"""How many files this process may have open: a connection is one, and the system's default may be too few.

Of the command line alone: a program that serves within itself has its own limits.
"""

from __future__ import annotations

import resource
from typing import Final

SPARE_FILES: Final = 128
"""For all that is no connection: listeners, the model, logs, libraries."""


def allow_connections(connections: int) -> str | None:
    """Raise the soft limit of open files to what so many connections need.  Says what is wrong where it can't."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = reachable(connections + SPARE_FILES, soft=soft, hard=hard)
    if wanted != soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            wanted = soft
    if wanted == resource.RLIM_INFINITY or wanted >= connections + SPARE_FILES:
        return None
    return (
        f"max_connections is {connections}, but only {wanted} files may be open here (ulimit -Hn), "
        f"and {connections + SPARE_FILES} are needed"
    )


def reachable(needed: int, *, soft: int, hard: int) -> int:
    """The soft limit to set, which is never less than it was."""
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return soft
    return needed if hard == resource.RLIM_INFINITY else min(needed, hard)
