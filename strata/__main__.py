"""`python -m strata` and the `strata` command are the same.

A room of its own because Ctrl-C may come before there is anybody to catch it: nothing large is imported here.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Runs one command and exits the process.  Until the command can take Ctrl-C, that ends the process by itself."""
    # In the background of some shells it is ignored, and stays so.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        from strata.cli import main as run

        run()
    finally:
        # What follows is the interpreter's own end.
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
