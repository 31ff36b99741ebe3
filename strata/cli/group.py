"""A command of commands: its help has what each is for in whole sentences, and it ends quietly where nobody reads any
more what is printed.  Knows none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from strata.cli.codes import NOBODY_READS
from strata.cli.interrupts import ended_by_interrupts
from strata.cli.say import hush


class Group(click.Group):
    """click's own cuts each sentence to a line of the terminal, and ends with 1 at a closed pipe.

    `homes`: the modules of commands that are imported when they are asked for, by the commands' names.
    """

    def __init__(self, *args: Any, homes: Mapping[str, str] | None = None, **named: Any) -> None:
        super().__init__(*args, **named)
        self._homes = dict(homes or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._homes})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._homes and cmd_name not in self.commands:
            with ended_by_interrupts():
                home = import_module(self._homes[cmd_name])
            self.add_command(getattr(home, cmd_name))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str(limit=sys.maxsize)) for name, command in commands if command]
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
