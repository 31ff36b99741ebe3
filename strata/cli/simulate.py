"""`strata simulate`: how traffic would fare under each policy, without serving any of it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from strata.cli.flags import named, setting_options
from strata.cli.ranges import FiniteRange
from strata.config import POLICIES, EngineSettings, SchedulerSettings, Settings
from strata.errors import ConfigError

if TYPE_CHECKING:
    from strata.simulate import CostModel, Run, TraceRequest
    from strata.simulate.report import Report

    Outcome: TypeAlias = tuple[Report, Run, list[float]]
    """With the slowdown of every request."""

KINDS: Final = ("agents", "chat", "mixed")
UNUSED: Final = ("on_engine_death", "max_replays", "swap_ratio", "arena_mib", "speculate")
"""No engine dies in made-up time, nothing is moved to an arena, and no tokens are offered."""
WIDTH: Final = 100
"""Of what is printed (columns), as far as figures and names let it."""
WORTH_A_PROCESS: Final = 10_000
"""Requests; with fewer, a process of its own for each policy takes longer to start than to run."""


@click.command()
@click.argument("trace", type=click.Path(path_type=Path), required=False)
@click.option(
    "--policy", "policies", type=click.Choice(list(POLICIES)), multiple=True, help="Several: compared. [default: all]"
)
@click.option(
    "--model-cost",
    type=click.Path(path_type=Path),
    help="A file that --calibrate wrote. [default: the default model on a laptop]",
)
@click.option("--pages", type=click.IntRange(1), help="Of keys and values. [default: as many as can be of use]")
@click.option("--json", "json_out", type=click.Path(path_type=Path), help="Write all figures here.")
@click.option(
    "--plot", "plot_out", type=click.Path(path_type=Path), help="Draw waits and slowdown here (needs matplotlib)."
)
@click.option("--generate", "kind", type=click.Choice(KINDS), help="Make the traffic up instead of reading TRACE.")
@click.option("--requests", type=click.IntRange(1), default=1000, show_default=True, help="How many to make up.")
@click.option("--per-s", type=FiniteRange(1e-6, 1e6), default=0.5, show_default=True, help="How many of them a second.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed makes the same traffic.")
@click.option("--write", type=click.Path(path_type=Path), help="Write the traffic here, as a trace, and run nothing.")
@click.option(
    "--calibrate",
    "model",
    type=click.Path(path_type=Path),
    help="Time this model (GGUF) here, write --out, and run nothing.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The cost model that --calibrate writes.")
@setting_options(SchedulerSettings, EngineSettings, without=UNUSED)
def simulate(
    trace: Path | None,
    policies: tuple[str, ...],
    model_cost: Path | None,
    pages: int | None,
    json_out: Path | None,
    plot_out: Path | None,
    kind: str | None,
    requests: int,
    per_s: float,
    seed: int,
    write: Path | None,
    model: Path | None,
    out: Path | None,
    **flags: Any,
) -> None:
    """Runs TRACE through the scheduler in made-up time: first tokens, gaps and slowdown under each policy.

    TRACE has one JSON object a line: timestamp (ms), input_length, output_length (tokens), and priority if you like;
    equal hash_ids (of 512 tokens each) are read once, while the prefix cache keeps them.
    """
    from strata.simulate import laptop, read_cost, write_trace

    chosen = {policy: Settings.of(policy=policy, **named(flags)) for policy in policies or POLICIES}
    if model is not None:
        _calibrate(model, out, Settings.of(**named(flags)))
        return
    traffic = _traffic(trace, kind, requests, seed, per_s)
    if write is not None:
        write_trace(write, traffic)
        click.echo(f"{len(traffic):,} requests in {write}")
        return
    _refuse_what_cannot_be_drawn(plot_out)
    cost = laptop() if model_cost is None else read_cost(model_cost)
    _compare(traffic, chosen, cost, pages, json_out, plot_out)


def _traffic(trace: Path | None, kind: str | None, requests: int, seed: int, per_s: float) -> list[TraceRequest]:
    from strata.simulate import generate, read_trace

    if kind is not None and trace is None:
        return generate(kind, requests, seed=seed, per_s=per_s)
    if kind is None and trace is not None:
        return read_trace(trace)
    raise click.UsageError("name a TRACE, or say what to --generate")


def _calibrate(model: Path, out: Path | None, settings: Settings) -> None:
    from strata.cli.calibrate import calibrate
    from strata.simulate import write_cost

    if out is None:
        raise click.UsageError("--calibrate needs --out, the file to write")
    cost = calibrate(model, settings, click.echo)
    write_cost(out, cost)
    chunk, step = cost.read_seconds(512, 512), cost.step_seconds(1, 0)
    click.echo(f"{out}: {cost.measured_on}; 512 tokens are read in {chunk:.2f} s, a token takes {1000 * step:.1f} ms")


def _refuse_what_cannot_be_drawn(plot_out: Path | None) -> None:
    """Before the work, not after it."""
    from strata.simulate.plot import HOW_TO_GET_IT, can_plot

    if plot_out is not None and not can_plot():
        raise ConfigError("plot", HOW_TO_GET_IT)


def _compare(
    traffic: Sequence[TraceRequest],
    chosen: Mapping[str, Settings],
    cost: CostModel,
    pages: int | None,
    json_out: Path | None,
    plot_out: Path | None,
) -> None:
    from strata.simulate.report import table

    for line in textwrap.wrap(f"{len(traffic):,} requests; costs of {cost.measured_on}", WIDTH):
        click.echo(line)
    side_by_side = len(chosen) > 1 and len(traffic) >= WORTH_A_PROCESS
    runs = run_all(traffic, chosen, cost, pages, side_by_side=side_by_side)
    reports = [one for one, _, _ in runs]
    for line in table(reports):
        click.echo(line)
    for one in reports:
        for line in textwrap.wrap(_in_a_line(one), WIDTH, subsequent_indent="  "):
            click.echo(line)
    if json_out is not None:
        _write_json(json_out, reports, chosen, cost)
    if plot_out is not None:
        _draw(plot_out, runs, traffic, chosen)


def run_all(
    traffic: Sequence[TraceRequest],
    chosen: Mapping[str, Settings],
    cost: CostModel,
    pages: int | None,
    *,
    side_by_side: bool,
) -> list[Outcome]:
    """A run for each policy, one after another or each in a process of its own; one of much traffic in two halves."""
    one = partial(_run, traffic=traffic, cost=cost, pages=pages)
    if not side_by_side:
        return [one(item, in_halves=len(traffic) >= WORTH_A_PROCESS) for item in chosen.items()]
    # Not forked: NumPy's threads would not live on in the children.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        return list(pool.map(one, chosen.items()))


def _run(
    item: tuple[str, Settings],
    *,
    traffic: Sequence[TraceRequest],
    cost: CostModel,
    pages: int | None,
    in_halves: bool = False,
) -> Outcome:
    from strata.simulate import Machine
    from strata.simulate import simulate as in_one
    from strata.simulate.halves import simulate_in_halves
    from strata.simulate.report import report, slowdown

    policy, settings = item
    rules, engine = settings.scheduler, settings.engine
    if pages is None:
        longest = max(request.input_length + request.output_length for request in traffic)
        pages = rules.max_running * -(-longest // engine.page_tokens)
    machine = Machine(cost, pages, engine.page_tokens, engine.max_half_read)
    run = (simulate_in_halves if in_halves else in_one)(traffic, rules, machine)
    outcome = report(policy, run, rules, cost), run, slowdown(run, rules, cost)
    run.requests = ()  # whoever asked for this has them, and they would have to travel
    return outcome


def _in_a_line(one: Report) -> str:
    parks = ", ".join(f"{n:,} by {reason}" for reason, n in one.parks.items()) or "none"
    return (
        f"{one.policy}: {one.ended_at_s:,.0f} s in all, the engine was busy for {100 * one.busy:.0f} %; "
        f"parks: {parks}; refused: {one.refused:,}; "
        f"tokens read: {one.read_tokens:,}, cached: {one.cached_tokens:,}"
    )


def _write_json(path: Path, reports: Sequence[Report], chosen: Mapping[str, Settings], cost: CostModel) -> None:
    import attrs
    import msgspec

    whole = {
        "cost": msgspec.to_builtins(cost),
        "settings": {policy: attrs.asdict(settings.scheduler) for policy, settings in chosen.items()},
        "policies": [one.as_json() for one in reports],
    }
    try:
        path.write_text(json.dumps(whole, indent=2) + "\n")
    except OSError as problem:
        raise ConfigError("json", f"{path} can't be written ({problem.strerror or problem})") from None


def _draw(path: Path, runs: Sequence[Outcome], traffic: Sequence[TraceRequest], chosen: Mapping[str, Settings]) -> None:
    from strata.simulate.plot import plot

    figures: dict[str, dict[str, dict[str, list[float]]]] = {}
    for one, run, slowdowns in runs:
        limit = chosen[one.policy].scheduler.short_tokens
        is_short = [request.input_length + request.output_length <= limit for request in traffic]
        columns = {"time to the first token (s)": run.ttft_s, "longest gap (s)": run.longest_gap_s}
        for title, values in {**columns, "slowdown (times alone)": slowdowns}.items():
            figures.setdefault(title, {})[one.policy] = {
                name: [value for value, short in zip(values, is_short, strict=True) if short == wanted]
                for name, wanted in (("short", True), ("long", False))
            }
    plot(path, figures)
    click.echo(f"drawn in {path}")
