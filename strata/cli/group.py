"""A command of commands: its help has what each is for in whole sentences, and it ends quietly where nobody reads any
more what is printed.  Knows none of them.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from strata.cli.say import hush

NOBODY_READS: Final = 128 + signal.SIGPIPE
"""What a shell shows of a tool that dies of it, as most do: `strata settings | head`."""


class Group(click.Group):
    """click's own cuts each sentence to a line of the terminal, and ends with 1 at a closed pipe."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self.commands[name].get_short_help_str(limit=sys.maxsize)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def make_context(self, *args: Any, **named: Any) -> click.Context:
        # Help is printed here already.
        with _while_somebody_reads():
            return super().make_context(*args, **named)

    def invoke(self, ctx: click.Context) -> Any:
        with _while_somebody_reads():
            return super().invoke(ctx)


@contextmanager
def _while_somebody_reads() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        pass
    except SystemExit as ended:
        # What rich makes of it.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
    else:
        return
    hush(sys.stdout)
    raise click.exceptions.Exit(NOBODY_READS)
