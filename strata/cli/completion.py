"""`strata completion`: the lines that make a shell complete Strata's commands and flags."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Prints what SHELL is to run.

    \b
    bash:  eval "$(strata completion bash)"      in ~/.bashrc
    zsh:   eval "$(strata completion zsh)"       in ~/.zshrc
    fish:  strata completion fish | source       in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows each of SHELLS"
    click.echo(kind(context.find_root().command, {}, "strata", "_STRATA_COMPLETE").source())
