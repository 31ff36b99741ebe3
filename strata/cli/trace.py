"""`strata trace diff`: where two runs of the engine parted."""

from __future__ import annotations

from pathlib import Path

import click

from strata.cli.group import Group


@click.group(cls=Group)
def trace() -> None:
    """Compares traces written by `strata serve --trace FILE`."""


@trace.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
def diff(a: Path, b: Path) -> int:
    """Names the first line in which B differs from A, sequence by sequence; exit code 1 if there is one.

    The sampler's state counts: name the same seed for each request in both runs."""
    from strata.engine.trace import diff as first_difference

    try:
        difference = first_difference(a, b)
    except OSError as problem:
        raise click.ClickException(f"{problem.filename}: {problem.strerror}") from None
    except ValueError as problem:
        raise click.ClickException(str(problem)) from None
    click.echo(difference or "the same")
    return 1 if difference else 0
