"""`strata models`: which model files are on this machine, and what they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import rich.box
import rich.console
import rich.table

from strata.errors import ModelError


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
def models(folders: tuple[Path, ...]) -> None:
    """Lists the model files in the cache, and in FOLDERS if any are named."""
    from strata.models.source import default_model_path

    cache = default_model_path().parent
    table = rich.table.Table(box=rich.box.SIMPLE)
    for name in ("file", "size", "architecture", "quantisation", "context"):
        table.add_column(name, overflow="fold")
    found = list(_files((cache, *folders)))
    for path in found:
        table.add_row(*_row(path, default=path == default_model_path()))
    console = rich.console.Console()
    if found:
        console.print(table, highlight=False)
    else:
        console.print(f"No model is in {cache}: `strata pull` fetches the default one (94 MiB).", highlight=False)


def _files(folders: tuple[Path, ...]) -> Iterator[Path]:
    for folder in folders:
        try:
            found = sorted(folder.glob("*.gguf"))
        except OSError as problem:
            raise ModelError(f"{folder} can't be looked at ({problem.strerror or problem})") from problem
        yield from found


def _row(path: Path, *, default: bool) -> tuple[str, ...]:
    from strata.models import open_model

    shown = f"{path} (default)" if default else str(path)
    size = f"{path.stat().st_size / 2**20:,.0f} MiB"
    try:
        model = open_model(path)
    except ModelError as problem:
        return shown, size, str(problem).removeprefix(f"{path}: "), "", ""
    return shown, size, model.architecture, model.quantisation or "?", f"{model.config.context:,}"
