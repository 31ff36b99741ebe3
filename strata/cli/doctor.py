"""`strata doctor`: what this machine has, what Strata would do with it, and what to do about each problem."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
from attrs import frozen
from click.core import ParameterSource

from strata.cli.config_file import config_path, user_config_path
from strata.cli.flags import named, settings_flags
from strata.cli.ranges import FiniteRange
from strata.cli.unset import computed, words
from strata.config import (
    Device,
    EngineSettings,
    HostSettings,
    RequestSettings,
    SchedulerSettings,
    ServeSettings,
    Settings,
)
from strata.errors import ModelError

if TYPE_CHECKING:
    from strata.gpu.found import Found
    from strata.models.file import ModelFile

UNSET: Final = (None, ())
UNASKED: Final = (*UNSET, "auto")
"""Values in whose place others are used."""
NARROWEST: Final = 20
"""Columns: beside what takes more of the terminal than that leaves, nothing is wrapped."""


@frozen
class Finding:
    """One line of the report.  `mend` says what to do where something is not as it should be."""

    what: str
    found: str
    mend: str | None = None


@click.command()
@click.option("--model", envvar="STRATA_MODEL", help="A file, a folder or a pulled name to look at.")
@click.option(
    "--rates",
    type=FiniteRange(min=0, min_open=True),
    nargs=3,
    metavar="CHUNK SLICE STEP",
    help="The engine's longest chunk, slice and decode step (seconds): shows the bound on waiting in seconds.",
)
@settings_flags(ServeSettings, SchedulerSettings, EngineSettings, HostSettings, RequestSettings)
@click.pass_context
def doctor(
    context: click.Context,
    /,
    policy: str,
    served_name: str | None,
    model: str | None,
    rates: tuple[float, float, float] | None,
    **flags: object,
) -> int:
    """Looks at the machine, the model and the settings; exit code 1 if something needs mending."""
    from strata.gpu.found import look

    settings = Settings.of(policy=policy, served_name=served_name, **named(dict(flags)))
    card, opened = look(), _opened(model)
    unasked = computed(settings, None if isinstance(opened, Finding) else opened, card)
    sections = {
        "machine": list(_machine()),
        "arithmetic": [*_arithmetic(), *_card(settings.engine, card)],
        "model": [opened] if isinstance(opened, Finding) else list(_model(opened)),
        f"settings (policy {settings.policy})": list(_settings(settings, unasked, context)),
        "bound on waiting": list(_bound(settings.scheduler, rates)),
    }
    for title, findings in sections.items():
        click.secho(title, bold=True)
        for finding in findings:
            _show(finding)
    return 1 if any(finding.mend for findings in sections.values() for finding in findings) else 0


def _show(finding: Finding) -> None:
    for line in _lines(f"  {finding.what:<20} ", finding.found):
        click.echo(line)
    if finding.mend:
        for line in _lines(f"  {'':<20} -> ", finding.mend):
            click.secho(line, fg="yellow")


def _lines(begin: str, text: str) -> list[str]:
    """`text` beside `begin`, in as many lines as a terminal needs for it; in one where it is not read in a terminal."""
    # Whoever started us may have closed it.
    in_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if in_terminal else 0
    if width <= len(begin) + NARROWEST:
        return [begin + text]
    return textwrap.wrap(
        text,
        width,
        initial_indent=begin,
        subsequent_indent=" " * len(begin),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [begin.rstrip()]


def _machine() -> Iterator[Finding]:
    from strata.cpu import machine

    yield Finding("strata", version("strata-serve"))
    yield Finding("python", f"{platform.python_version()} on {platform.system()} {platform.release()}")
    yield Finding("processors", f"{machine.usable_processors()} usable of {os.cpu_count()}")
    free, total = machine.available_bytes() >> 20, machine.total_bytes() >> 20
    low = "free some memory: the default model needs about 1 GiB" if free < 1024 else None
    yield Finding("memory", f"{free:,} MiB available of {total:,} MiB", low)


def _arithmetic() -> Iterator[Finding]:
    import numpy
    from threadpoolctl import threadpool_info

    from strata.cpu.choice import VARIABLE, choose, runnable

    kernels = choose()
    forced = f" ({VARIABLE} is set)" if VARIABLE in os.environ else ""
    yield Finding("kernels", f"{kernels.name}{forced}; these run here: {', '.join(runnable())}", kernels.mend)
    for pool in threadpool_info():
        if pool["user_api"] == "blas":
            yield Finding(
                "BLAS",
                f"{pool['internal_api']} {pool['version']}, kernels for {pool.get('architecture', '?')}, "
                f"{pool['num_threads']} threads (NumPy {numpy.__version__})",
            )
    core = os.environ.get("OPENBLAS_CORETYPE")
    if core:
        yield Finding("OPENBLAS_CORETYPE", f"{core} (set in the environment; it decides which kernels BLAS takes)")
    yield Finding("cpu", "float32")


def _card(settings: EngineSettings, found: Found) -> Iterator[Finding]:
    """What is missing for a card needs mending only where one is asked for."""
    asked = settings.device is Device.CUDA
    if found.compiler:
        yield Finding("compiler", found.compiler)
    if found.problem:
        yield Finding(
            "cuda", "not usable" if asked else f"not usable: {found.problem}", found.problem if asked else None
        )
    else:
        yield Finding("cuda", str(found.card), found.no_bf16 if settings.activations == "bf16" else None)
        needed = settings.products == "cublas"
        unusable = "not usable" if needed else f"not usable: {found.no_cublas}"
        yield Finding("cuBLAS", found.cublas or unusable, found.no_cublas if needed else None)


def _opened(name: str | None) -> ModelFile | Finding:
    """The model, or what is wrong with it."""
    from strata.models import open_model
    from strata.models.hub import find_model
    from strata.models.source import default_model_path

    try:
        path = find_model(default_model_path() if name is None else name)
        if name is None and not path.exists():
            return Finding("default model", "not here yet", "`strata pull` fetches it (94 MiB)")
        return open_model(path)
    except ModelError as problem:
        return Finding("model", name or str(default_model_path()), str(problem))


def _model(model: ModelFile) -> Iterator[Finding]:
    yield Finding("file", f"{model.path} ({model.size_bytes / 2**20:,.0f} MiB)")
    config = model.config
    yield Finding(
        "model", f"{model.name}: {model.architecture}, {model.quantisation}, context {config.context:,} tokens"
    )
    yield Finding(
        "shape", f"{config.layers} layers, width {config.hidden}, {config.heads} heads, {config.kv_heads} for keys"
    )


def _settings(settings: Settings, unasked: Mapping[str, str], context: click.Context) -> Iterator[Finding]:
    """`unasked`: by name, what is used where they are unset."""
    path = config_path(context)
    yield Finding("config file", f"{user_config_path()} (not there)" if path is None else str(path))
    yield _setting(attrs.fields(Settings).served_name, settings, unasked, settings.policy, context)
    seen: set[str] = set()
    for part in (settings.serve, settings.scheduler, settings.engine, settings.hosting, settings.requests):
        for field in attrs.fields(type(part)):
            if field.name not in seen:
                seen.add(field.name)
                yield _setting(field, part, unasked, settings.policy, context)


def _setting(
    field: attrs.Attribute[Any], part: object, unasked: Mapping[str, str], policy: str, context: click.Context
) -> Finding:
    value = getattr(part, field.name)
    if value != field.default:
        source = _source(field.name, policy, context)
        return Finding(field.name, f"{_shown(field, value)}  (default {_shown(field, field.default)}; {source})")
    if value not in UNASKED:
        return Finding(field.name, _shown(field, value))
    if field.name not in unasked:
        return Finding(field.name, words(field) if value in UNSET else _shown(field, value))
    return Finding(field.name, f"{unasked[field.name]}  ({_shown(field, value)})")


def _source(name: str, policy: str, context: click.Context) -> str:
    """Who gave a setting its value, where that isn't its default."""
    match context.get_parameter_source(name):
        case ParameterSource.COMMANDLINE:
            return "from the command line"
        case ParameterSource.ENVIRONMENT:
            return f"from STRATA_{name.upper()}"
        case ParameterSource.DEFAULT_MAP:
            return f"from {config_path(context)}"
        case _:
            return f"from policy {policy}"


def _bound(settings: SchedulerSettings, rates: tuple[float, float, float] | None) -> Iterator[Finding]:
    from strata.scheduling.bound import Rates, lines

    measured = None if rates is None else Rates(chunk_s=rates[0], slice_s=rates[1], step_s=rates[2])
    for line in lines(settings, measured):
        yield Finding(line.what, line.formula)


def _shown(field: attrs.Attribute[Any], value: Any) -> str:
    """The value as a person would write it; a secret only as being there."""
    if value in UNSET:
        return "unset"
    if not field.repr:
        return "set"
    if isinstance(value, bool):
        # As a TOML file has it.
        return str(value).lower()
    return " ".join(value) if isinstance(value, tuple) else str(value)
