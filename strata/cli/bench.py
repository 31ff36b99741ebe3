"""`strata bench`: what this machine does with a model, as a table, a file and a picture.  Measures nothing itself."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.flags import Command, named, setting_options
from strata.cli.group import Group
from strata.config import POLICIES, EngineSettings, HostSettings, SchedulerSettings, Settings
from strata.errors import ConfigError, PromptTooLong

if TYPE_CHECKING:
    from strata.bench.report import Report

REPEATS: Final = 5
WIDTH: Final = 160
"""Characters in a line where there is no terminal."""
ENGINES: Final = ("max_half_read", "arena_mib", "speculate")
"""Settings of what is around a model: there is no engine where a model is driven by hand."""
MEMORYS: Final = ("kv_mib", "page_tokens", "chunk_tokens")
"""Of a sequence's memory: a single operation has no sequence."""
RESTARTS: Final = ("restart_limit", "restart_window_s", "restart_backoff_s")
DEATHS: Final = (*RESTARTS, "on_engine_death", "max_replays")
"""A measurement ends with its engine."""


@click.group(cls=Group)
def bench() -> None:
    """Measures a model on this machine, in this process: best on a machine that does nothing else."""


def _measured(*kinds: type, without: Iterable[str]) -> Callable[[Command], Command]:
    """The options that every one of them has, and the settings of these kinds."""

    def decorate(command: Command) -> Command:
        command = setting_options(*kinds, without=without)(command)
        for option in (
            click.option("--plot", "plot_out", type=click.Path(path_type=Path), help="Draw it (needs matplotlib)."),
            click.option("--json", "json_out", type=click.Path(path_type=Path), help="Write all figures here."),
            click.option(
                "--repeats", type=click.IntRange(1), default=REPEATS, show_default=True, help="Medians of so many."
            ),
            click.option(
                "--model", envvar="STRATA_MODEL", help="A file, a folder or a pulled name. [default: the default model]"
            ),
        ):
            command = option(command)
        return command

    return decorate


def _policy(command: Command) -> Command:
    choice = click.Choice(list(POLICIES))
    return click.option("--policy", type=choice, default="batch", show_default=True, help="As in strata serve.")(
        command
    )


@bench.command()
@_measured(EngineSettings, without=ENGINES)
def throughput(model: str | None, repeats: int, json_out: Path | None, plot_out: Path | None, **flags: Any) -> None:
    """Tokens a second: reading after 0, 1K, 2K and 4K tokens, decoding 1, 4 and 8 rows after 0 and 4K."""
    from strata.bench.throughput import throughput as measure

    settings = Settings.of(**named(flags))
    _run(lambda path: measure(path, settings, repeats, _say), model, json_out, plot_out)


@bench.command()
@_measured(EngineSettings, without=ENGINES + MEMORYS)
def operations(model: str | None, repeats: int, json_out: Path | None, plot_out: Path | None, **flags: Any) -> None:
    """Each operation by itself, of 1 and 8 rows and of a slice: bytes and sums a second, and how much of the device's
    most that is."""
    from strata.bench.operations import operations as measure

    settings = Settings.of(**named(flags))
    _run(lambda path: measure(path, settings, repeats, _say), model, json_out, plot_out)


@bench.command()
@_measured(EngineSettings, HostSettings, without=ENGINES + RESTARTS)
def newer_step(model: str | None, repeats: int, json_out: Path | None, plot_out: Path | None, **flags: Any) -> None:
    """How soon a row is decoded that the engine is told of while it reads a long prompt."""
    import trio

    from strata.bench.newer_step import newer_step as measure

    settings = Settings.of(**named(flags))
    _run(lambda path: trio.run(measure, path, settings, repeats, _say), model, json_out, plot_out)


@bench.command()
@_policy
@_measured(SchedulerSettings, EngineSettings, HostSettings, without=DEATHS)
def contention(
    policy: str, model: str | None, repeats: int, json_out: Path | None, plot_out: Path | None, **flags: Any
) -> None:
    """A short request's first token: alone, behind a long prompt, behind a long answer."""
    import trio

    from strata.bench.contention import contention as measure

    settings = Settings.of(policy=policy, **named(flags))
    _run(lambda path: trio.run(measure, path, settings, repeats, _say), model, json_out, plot_out)


@bench.command()
@_policy
@_measured(SchedulerSettings, EngineSettings, HostSettings, without=DEATHS)
def overhead(
    policy: str, model: str | None, repeats: int, json_out: Path | None, plot_out: Path | None, **flags: Any
) -> None:
    """The runtime's own time in % of the engine's, and how long slices and steps are."""
    import trio

    from strata.bench.overhead import overhead as measure

    settings = Settings.of(policy=policy, **named(flags))
    _run(lambda path: trio.run(measure, path, settings, repeats, _say), model, json_out, plot_out)


def _run(measure: Callable[[Path], Report], model: str | None, json_out: Path | None, plot_out: Path | None) -> None:
    from strata.bench.plot import must_plot, plot
    from strata.cli.choose import chosen_model

    if plot_out is not None:
        must_plot()
    load = os.getloadavg()
    try:
        report = measure(chosen_model(model))
    except PromptTooLong as error:
        raise ConfigError("context", f"it is too small for what is measured: {error}") from error
    _show(report)
    if json_out is not None:
        _write_json(json_out, report, load)
    if plot_out is not None:
        plot(plot_out, report)
        click.echo(f"drawn in {plot_out}")


def _say(text: str) -> None:
    """Beside the figures, not among them."""
    click.echo(text, err=True)


def _show(report: Report) -> None:
    import rich.box
    import rich.console
    import rich.table

    title = f"{report.what}: {report.model} on {report.device}, medians of {report.repeats}"
    table = rich.table.Table(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD)
    for column in report.columns:
        table.add_column(column.title, justify="right" if column.shown else "left")
    for row in report.rows:
        table.add_row(*report.cells(row))
    console = rich.console.Console()
    if not console.is_terminal:
        # A file or a pipe has no width to wrap at.
        console.width = WIDTH
    console.print(table)
    for line in report.notes:
        click.echo(line)
    for line in report.left_out:
        click.echo(f"left out: {line}")


def _write_json(path: Path, report: Report, load: tuple[float, float, float]) -> None:
    about = {
        "command": shlex.join(["strata", *sys.argv[1:]]),
        "strata": version("strata-serve"),
        "python": platform.python_version(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_before": load,
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    try:
        path.write_text(json.dumps(about | report.as_json(), indent=1) + "\n")
    except OSError as problem:
        raise ConfigError("json", f"{path} can't be written ({problem.strerror or problem})") from None
