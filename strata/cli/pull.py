"""`strata pull`: the default model, on this machine."""

from __future__ import annotations

import click


@click.command()
def pull() -> None:
    """Fetches the default model (SmolLM2-135M-Instruct, 94 MB, Apache-2.0) into the user's cache."""
    from strata.models.pull import pull_default

    click.echo(pull_default())
