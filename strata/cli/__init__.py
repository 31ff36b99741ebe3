"""The command line: turns flags into settings and errors into exit codes.  Decides nothing about serving.

Exit codes: 0 it did what was asked, 1 the answer is no (`trace diff`, `doctor`), 2 it can't start as asked,
3 the engine died, while it was loaded or so that no other can be started, 128 and a signal's number (130, 143) told
twice to end (141: whoever read what it printed has left).
"""

from __future__ import annotations

import errno
import signal
import sys
from typing import Final

import click

from strata.cli.codes import CANT_START, ENGINE_DIED, INTERRUPTED
from strata.cli.group import Group
from strata.cli.say import hush_if_broken, say
from strata.errors import StartError, StartFailed

COMMANDS: Final = (
    *("serve", "chat", "inspect", "pull", "models", "doctor"),
    *("bench", "settings", "simulate", "trace", "completion"),
)


@click.group(
    cls=Group,
    homes={name: f"strata.cli.{name}" for name in COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="strata-serve", prog_name="strata")
def cli() -> None:
    """Serves a language model from one machine to many clients: a short request passes a long one."""


def main(argv: list[str] | None = None) -> None:
    """Runs one command and exits the process."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            # It ended us without a word while we were imported; here it is caught.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = cli.main(argv, prog_name="strata", standalone_mode=False)
    except StartError as problem:
        say(f"strata: {problem}", sys.stderr)
        code = ENGINE_DIED if isinstance(problem, StartFailed) else CANT_START
    except click.ClickException as problem:
        problem.show()
        code = CANT_START
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except OSError as problem:
        # What is written to has gone away (a terminal too), or is full; anything else is a bug, and is to be seen.
        if problem.errno not in (errno.EPIPE, errno.ENOSPC, errno.EBADF, errno.EIO):
            raise
        say(f"strata: the output can't be written ({problem.strerror})", sys.stderr)
        hush_if_broken(sys.stdout)
        code = CANT_START
    # What could not be logged is no reason for another exit code.
    hush_if_broken(sys.stderr)
    sys.exit(code or 0)
