"""`strata settings`: every setting in one table, made from the settings themselves.

docs/settings.md holds what `--markdown` prints, and a test holds it to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs
import click
import rich.box
import rich.console
import rich.table
from attrs import frozen

from strata.cli.config_file import FILE_NAME
from strata.config import POLICIES, EngineSettings, HostSettings, RequestSettings, SchedulerSettings, ServeSettings

KINDS: Final = {
    "The server": ServeSettings,
    "What runs next": SchedulerSettings,
    "The engine": EngineSettings,
    "Where the engine runs": HostSettings,
    "Requests": RequestSettings,
}

INTRODUCTION: Final = f"""# Settings

Made by `strata settings --markdown`; a test holds this page to the code.

A setting's value is the first of these that is given: its flag (`--max-running 4`), its environment variable
(`STRATA_MAX_RUNNING=4`), its line in a TOML file (`max_running = 4`), the policy's, its default. The file is
`--config FILE`, or `STRATA_CONFIG`, or `{FILE_NAME}` in the user's configuration folder. `strata doctor` shows each
setting with its source. A variable for several values has them with spaces between (`STRATA_API_KEYS="one two"`);
one whose name is nearly a setting's is refused. In the file several values are a list, and text alone stands in
quotes. What could mean nothing refuses the start, such as a host that no client would name. A program gives the
settings to `open_runtime` by the names of the file.
"""


@frozen
class Line:
    """One setting, for people."""

    name: str
    flag: str
    default: str
    says: str


@click.command()
@click.option("--markdown", is_flag=True, help="As the page docs/settings.md.")
def settings(markdown: bool) -> None:
    """Shows every setting: its name, its default and what it means."""
    if markdown:
        click.echo(page(), nl=False)
        return
    console = rich.console.Console()
    for title, kind in KINDS.items():
        table = rich.table.Table("setting", "default", "", title=title, title_justify="left", box=rich.box.SIMPLE)
        for line in lines(kind):
            table.add_row(line.name, line.default, line.says)
        console.print(table, highlight=False)


def lines(kind: type) -> Iterator[Line]:
    """The settings of one class, in its order."""
    for field in attrs.fields(kind):
        flag = field.name.removesuffix("s") if isinstance(field.default, tuple) else field.name
        if field.default is True:
            flag = f"no-{flag}"
        yield Line(field.name, f"--{flag.replace('_', '-')}", _shown(field.default), field.metadata.get("help", ""))


def page() -> str:
    """All of it as Markdown."""
    parts = [INTRODUCTION, *(_section(title, kind) for title, kind in KINDS.items()), _policies()]
    return "\n".join(parts)


def _section(title: str, kind: type) -> str:
    rows = [f"| `{line.name}` | `{line.flag}` | {line.default} | {line.says} |" for line in lines(kind)]
    return "\n".join([f"## {title}\n", "| setting | flag | default | |", "|---|---|---|---|", *rows, ""])


def _policies() -> str:
    rows = [
        f"| `{policy}` | {', '.join(f'`{name} = {value}`' for name, value in values.items())} |"
        for policy, values in POLICIES.items()
    ]
    return "\n".join(["## Policies\n", "`--policy` names sets of them.\n", "| policy | |", "|---|---|", *rows, ""])


def _shown(default: Any) -> str:
    if default is None or default == ():
        return "unset"
    return str(default).lower() if isinstance(default, bool) else str(default)
