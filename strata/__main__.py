"""`python -m strata` and the `strata` command are the same.

A room of its own because Ctrl-C may come before there is anybody to catch it: nothing large is imported here.  What
comes while the interpreter itself starts, before this file, is the interpreter's to say.
"""

from __future__ import annotations

INTERRUPTED = 130  # `strata.cli.codes` takes long to import

try:
    import signal
except KeyboardInterrupt:
    raise SystemExit(INTERRUPTED) from None


def main() -> None:
    """Runs one command and exits the process.  Until the command can take Ctrl-C, that ends the process by itself."""
    try:
        # In the background of some shells it is ignored, and stays so.
        ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            from strata.cli import main as run

            run()
        finally:
            # What follows is the interpreter's own end.
            if ours:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        # Where somebody was just being told why it ends.
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
