"""Settings from a TOML file: `--config FILE`, or `strata.toml` in the user's configuration folder.

Their names are the flags' own, with underscores: `max_running = 4`.  One file may serve all commands: what a command
has no use for is passed over, what no command knows is refused.  click asks the file after the command line and the
environment, and before the defaults.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import platformdirs

from strata.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])

FILE_NAME: Final = "strata.toml"
_PATH: Final = "strata.config_file"
PREFIX: Final = "STRATA_"
_KINDS: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}
MISSPELT: Final = 0.85
"""How like a setting's name another must be, as difflib counts it, to have been meant for it."""


def user_config_path() -> Path:
    """The file that is read where none is named; it need not be there."""
    return platformdirs.user_config_path("strata") / FILE_NAME


def config_option(command: Command) -> Command:
    """Adds `--config`, which gives all other options of the command their values where nobody else does."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        envvar="STRATA_CONFIG",
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        callback=_take,
        help=f"Settings in TOML, by the names of the flags.  [default: {FILE_NAME} in the user's config folder]",
    )(command)


def _take(context: click.Context, _option: click.Parameter, named: Path | None) -> None:
    _refuse_misspelt_variables(context)
    path = named or user_config_path()
    if named is None and not _is_there(path):
        return
    values = read_config(path)
    _refuse_unknown(values, path, context)
    taken = {
        option.name: checked(option, values[option.name], path, context)
        for option in context.command.params
        if isinstance(option, click.Option) and option.name in values
    }
    context.default_map = {**(context.default_map or {}), **taken}
    context.meta[_PATH] = path


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as problem:
        raise ConfigError("config", f"{path} can't be looked at ({problem.strerror or problem})") from problem


def config_path(context: click.Context) -> Path | None:
    """The file that this command's settings were looked up in, if there was one."""
    path: Path | None = context.meta.get(_PATH)
    return path


def read_config(path: Path) -> dict[str, Any]:
    """The file's settings, by name.  Raises ConfigError, which names the file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as problem:
        raise ConfigError("config", f"{path} can't be read ({problem.strerror or problem})") from problem
    except (ValueError, RecursionError) as problem:
        # The library's own error is a ValueError too; so is a number of too many digits.
        raise ConfigError("config", f"{path} is not TOML: {problem}") from problem
    for name, value in values.items():
        if isinstance(value, Mapping):
            raise ConfigError(name, f"{path} has it as a table: settings stand by themselves, without tables")
    return values


def checked(option: click.Option, value: Any, path: Path, context: click.Context) -> Any:
    """The value as click will take it.  Raises ConfigError here, where the file can still be named."""
    assert option.name is not None
    several = option.multiple or option.nargs != 1
    if option.multiple and not isinstance(value, list):
        value = [value]
    types, wanted = _types_of(option)
    # Of the value itself nothing is said: it may be a key.
    if several and not isinstance(value, list):
        raise ConfigError(option.name, f"{path} has {_kind(value)} for it, and a list is wanted")
    for one in value if several else [value]:
        if type(one) not in types:
            raise ConfigError(option.name, f"{path} has {_kind(one)} for it, and {wanted} is wanted")
    try:
        option.type_cast_value(context, value)
    except (click.BadParameter, OverflowError, ValueError) as problem:
        raise ConfigError(option.name, f"{path}: {getattr(problem, 'message', problem)}") from problem
    return value


def _types_of(option: click.Option) -> tuple[tuple[type, ...], str]:
    """What a file may have for it, and that in words.  click itself makes numbers of texts and texts of numbers."""
    if option.is_flag:
        return (bool,), _KINDS[bool]
    if isinstance(option.type, click.types.IntParamType):
        return (int,), _KINDS[int]
    if isinstance(option.type, click.types.FloatParamType):
        return (int, float), _KINDS[float]
    return (str,), _KINDS[str]


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a date or a time")


def _refuse_unknown(values: Mapping[str, Any], path: Path, context: click.Context) -> None:
    own = _names_of(context.command)
    for name in values:
        # One file serves all commands; those of others are imported only where that is needed.
        if name not in own and name not in (known := _known(context)):
            like = difflib.get_close_matches(name, known, n=1)
            hint = f" (is it {like[0]}?)" if like else ""
            raise ConfigError(name, f"{path} names it, and there is no such setting{hint}")


def _refuse_misspelt_variables(context: click.Context) -> None:
    """A key that isn't one leaves a server open; what is like no setting is somebody else's variable."""
    own = {name.upper() for name in _names_of(context.command)}
    for variable in os.environ:
        name = variable.removeprefix(PREFIX)
        if name == variable or name in own:
            continue
        known = {name.upper() for name in _known(context)}
        if name in known:
            continue
        if like := difflib.get_close_matches(name, known, n=1, cutoff=MISSPELT):
            raise ConfigError(variable, f"there is no such setting (is it {PREFIX}{like[0]}?)")


def _known(context: click.Context) -> frozenset[str]:
    """What any command takes."""
    root = context.find_root().command
    if not isinstance(root, click.Group):
        return _names_of(context.command)
    commands = (root.get_command(context, name) for name in root.list_commands(context))
    return frozenset().union(*(_names_of(command) for command in commands if command is not None))


def _names_of(command: click.Command) -> frozenset[str]:
    names = (option.name for option in command.params if isinstance(option, click.Option))
    return frozenset(name for name in names if name is not None) - {"config", "help"}
