"""`strata inspect`: the actors of a running server, live in the terminal.  Asks over HTTP, like anybody else."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import click
import rich.box
import rich.console
import rich.live
import rich.table
from attrs import frozen

from strata.cli.ranges import FiniteRange
from strata.errors import StrataError

TIMEOUT_S: Final = 5.0
MOST_BYTES: Final = 16 << 20
"""Of an answer; a server has at most some hundred actors."""

ALWAYS: Final = ("actor", "state", "for", "read", "written", "engine")
SOMETIMES: Final = ("cached", "parks", "mail", "restarts")
"""Columns; the second only where somebody has something there."""


class NoAnswer(StrataError):
    """The server can't be asked; says why and what to do."""


@click.command()
@click.argument("url", default="http://127.0.0.1:8000")
@click.option("--admin-key", envvar="STRATA_ADMIN_KEY", show_envvar=True, help="Opens /admin, where it is locked.")
@click.option("--every", type=FiniteRange(0.1), default=1.0, show_default=True, help="Seconds between two looks.")
@click.option("--once", is_flag=True, help="Look once and end.")
def inspect(url: str, admin_key: str | None, every: float, once: bool) -> None:
    """Shows the actors of the server at URL: what each request is doing now, and what it took so far."""
    server = Server(url.rstrip("/"), admin_key)
    console = rich.console.Console()
    try:
        first = server.look()
        if once:
            console.print(first)
        else:
            _follow(server, first, every, console)
    except NoAnswer as problem:
        raise click.ClickException(str(problem)) from None


def _follow(server: Server, first: rich.table.Table, every: float, console: rich.console.Console) -> None:
    """Until Ctrl-C, or until the server can't be asked any more."""
    if not console.is_terminal:
        # Nothing can be drawn anew there: one table follows the other.
        console.print(first)
        while True:
            time.sleep(every)
            console.print(server.look())
    with rich.live.Live(first, console=console, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(server.look(), refresh=True)


@frozen
class Server:
    """A server that runs somewhere."""

    url: str
    admin_key: str | None

    def look(self) -> rich.table.Table:
        """Its actors now, as a table.  Raises NoAnswer."""
        answer = self._get("/admin/actors")
        try:
            return table(answer["actors"], title=self.url, now=time.time())
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise NoAnswer(f"{self.url} doesn't answer as a Strata server does; is it one?") from error

    def _get(self, path: str) -> Any:
        headers = {} if self.admin_key is None else {"Authorization": f"Bearer {self.admin_key}"}
        try:
            request = urllib.request.Request(self.url + path, headers=headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return json.loads(answer.read(MOST_BYTES))
        except urllib.error.HTTPError as error:
            error.close()
            raise NoAnswer(_refused(self.url, error.code, self.admin_key)) from error
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            raise NoAnswer(f"{self.url} doesn't answer as a Strata server ({_why(error)}); is one there?") from error


def table(actors: Iterable[Mapping[str, Any]], *, title: str, now: float) -> rich.table.Table:
    """The tree: each actor under its parent, requests with what was measured of them.  `now` is Unix time.

    A column that says nothing of anybody is left out, so that the others fit a terminal of 80 columns.
    """
    rows = list(_rows(actors, now))
    shown = rich.table.Table(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for name in ALWAYS + tuple(name for name in SOMETIMES if any(row.get(name) for row in rows)):
        shown.add_column(name, justify="left" if name in ("actor", "state") else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*(row.get(str(column.header), "") for column in shown.columns))
    return shown


def _rows(actors: Iterable[Mapping[str, Any]], now: float) -> Iterator[dict[str, str]]:
    """What each actor has to say, by column."""
    depths: dict[str | None, int] = {None: -1}
    for actor in actors:
        depths[actor["id"]] = depth = depths.get(actor["parent"], 0) + 1
        yield {
            "actor": "  " * depth + actor["id"],
            "state": actor["state"],
            "for": _seconds(now - actor["since"]),
            "mail": str(actor["mailbox"] or ""),
            "restarts": str(actor["restarts"] or ""),
            **_figures(actor.get("figures")),
        }


def _figures(figures: Mapping[str, Any] | None) -> dict[str, str]:
    if figures is None:
        return {}
    return {
        "read": f"{figures['read_tokens']}/{figures['prompt_tokens']}",
        "cached": str(figures["cached_tokens"] or ""),
        "written": str(figures["written_tokens"]),
        "parks": str(sum(figures["parks"].values()) or ""),
        "engine": _seconds(figures["engine_s"]),
    }


def _seconds(value: float) -> str:
    """As a person reads it: `3.2 s`, `4 m 10 s`."""
    if value < 60:
        return f"{max(0.0, value):.1f} s"
    minutes, seconds = divmod(int(value), 60)
    return f"{minutes} m {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} m"


def _refused(url: str, status: int, key: str | None) -> str:
    if status in (401, 403):
        return (
            f"{url} wants a key for /admin: give --admin-key, or STRATA_ADMIN_KEY"
            if key is None
            else f"{url} doesn't take this key for /admin"
        )
    if status == 503:
        return f"{url} is loading its model; try again when it is ready"
    return f"{url} answers {status} to /admin/actors; is it a Strata server?"


def _why(error: Exception) -> str:
    """In printable words: whoever answered may have said anything."""
    reason = str(getattr(error, "reason", error)) or type(error).__name__
    return "".join(c if c.isprintable() else " " for c in reason)[:200]
