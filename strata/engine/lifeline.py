"""What ties an engine's process to its server's: it never outlives it, whatever it is doing.

A room of its own because this is a matter of the operating system alone.  The parent holds one end of a pipe; when it
dies, however it dies, the system closes that end.  Not `PR_SET_PDEATHSIG`: that follows the thread that forked, which
may end long before its process.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys


def die_with_the_other_end_of(pipe: int) -> None:
    """When the last writer of this pipe is gone, this process is killed by the system, on Linux.

    No thread of ours need run for that: not while a native call keeps the interpreter to itself, nor while the process
    is stopped.  Elsewhere nothing happens; the end of the messages has to be noticed instead.  What is written into
    the pipe kills too: nothing ever is.
    """
    if sys.platform == "linux":
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
