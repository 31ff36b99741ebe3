"""The command line: turns flags into settings and errors into exit codes.  Decides nothing about serving.

Exit codes: 0 it did what was asked, 1 the answer is no (`trace diff`, `doctor`), 2 it can't start as asked,
3 the engine died, 130 interrupted.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

import click

from strata.cli.doctor import doctor
from strata.cli.pull import pull
from strata.cli.serve import serve
from strata.cli.trace import trace
from strata.errors import StartError

CANT_START = 2
INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("strata-serve"), prog_name="strata")
def cli() -> None:
    """Serves a language model from one machine to many clients: a short request never waits for a long one."""


for command in (serve, pull, doctor, trace):
    cli.add_command(command)


def main(argv: list[str] | None = None) -> None:
    """Runs one command and exits the process."""
    try:
        code = cli.main(argv, prog_name="strata", standalone_mode=False)
    except StartError as problem:
        print(f"strata: {problem}", file=sys.stderr)
        code = CANT_START
    except click.ClickException as problem:
        problem.show()
        code = CANT_START
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, and said so by it
        sys.stderr.close()
        code = 0
    sys.exit(code or 0)
