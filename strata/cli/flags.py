"""Flags made from the settings' own fields, so that a setting is described once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import attrs
import click

from strata.cli.config_file import config_option
from strata.config import POLICIES, Preempt

Command = TypeVar("Command", bound=Callable[..., Any])

_TYPES: dict[str, Any] = {"int": click.INT, "float": click.FLOAT, "bool": click.BOOL, "str": click.STRING}


def settings_flags(*kinds: type) -> Callable[[Command], Command]:
    """Adds `--policy`, `--served-name` and one flag for each field of these settings classes.

    A flag that isn't given arrives as None and is left out by `named()`, so that the policy's value stands.
    Each can also be given as an environment variable, `STRATA_` and the name in capitals, and in a file (`--config`).
    A setting of several values takes its flag, in the singular, several times.
    """

    def decorate(command: Command) -> Command:
        command = config_option(setting_options(*kinds)(command))
        command = click.option("--served-name", envvar="STRATA_SERVED_NAME", help="The model's name at the API.")(
            command
        )
        return click.option(
            "--policy",
            type=click.Choice(list(POLICIES)),
            default="batch",
            show_default=True,
            envvar="STRATA_POLICY",
            help="fifo: whole requests in order.  preempt: one at a time, giving way.  batch: many, giving way.",
        )(command)

    return decorate


def setting_options(*kinds: type, without: Iterable[str] = ()) -> Callable[[Command], Command]:
    """Adds one flag for each field of these settings classes, as `settings_flags` has them.

    `without`: the names of those that the command has no use for.
    """
    fields = {field.name: field for kind in reversed(kinds) for field in reversed(attrs.fields(kind))}
    for name in without:
        del fields[name]

    def decorate(command: Command) -> Command:
        for field in fields.values():
            command = _flag(field)(command)
        return command

    return decorate


def named(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given."""
    return {name: value for name, value in flags.items() if value is not None and value != ()}


def _flag(field: attrs.Attribute[Any]) -> Callable[[Command], Command]:
    says = field.metadata.get("help", "")
    repeated = isinstance(field.default, tuple)
    flag = (field.name.removesuffix("s") if repeated else field.name).replace("_", "-")
    # What is on by default can be switched off by `--no-...`.
    spelled = f"--{flag}/--no-{flag}" if field.default is True else f"--{flag}"
    shown = "" if field.default is None or repeated else f"  [default: {field.default}]"
    return click.option(
        spelled,
        field.name,
        type=_type(field),
        default=None,
        is_flag=isinstance(field.default, bool),
        multiple=repeated,
        envvar=f"STRATA_{field.name.upper()}",
        show_envvar=True,
        help=f"{says[:1].upper()}{says[1:]}.{shown}",
    )


def _type(field: attrs.Attribute[Any]) -> Any:
    if isinstance(field.default, Preempt):
        return click.Choice([choice.value for choice in Preempt])
    names: Sequence[str] = str(field.type).replace("tuple[str, ...]", "str").split(" | ")
    return next((_TYPES[name] for name in names if name in _TYPES), click.STRING)
