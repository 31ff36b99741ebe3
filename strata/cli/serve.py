"""`strata serve`: opens the port, loads the model, serves until it is told to stop or the engine dies."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import trio

from strata.actors.kernel import lone
from strata.cli.choose import ENGINE_HOST, chosen_model
from strata.cli.codes import ENGINE_DIED, SIGNALLED
from strata.cli.flags import named, settings_flags
from strata.cli.interrupts import ended_by_interrupts
from strata.cli.notify import notify
from strata.cli.open_files import allow_connections
from strata.cli.outlet import outlets
from strata.cli.say import say
from strata.config import EngineSettings, HostSettings, RequestSettings, SchedulerSettings, ServeSettings, Settings
from strata.errors import ConfigError

if TYPE_CHECKING:
    from strata.http.arriving import Arriving
    from strata.http.exchange import OnAccess
    from strata.http.serving import Tls
    from strata.runtime import Runtime

END_NOW_S: Final = 1.0


@click.command()
@click.option(
    "--model",
    envvar="STRATA_MODEL",
    help="A GGUF file, a checkpoint folder, or a name on the Hub that was pulled.  Without it: the default model.",
)
@click.option("--trace", type=click.Path(path_type=Path), help="Write one JSON line a slice and decode step here.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate chain (PEM): serve HTTPS, HTTP/2 too.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="The certificate's key (PEM).")
@click.option("--allow-h2c", is_flag=True, help="Take HTTP/2 without TLS, for a proxy that speaks it.")
@click.option("--access-log/--no-access-log", default=True, help="One JSON line a request on stderr, without texts.")
@settings_flags(ServeSettings, SchedulerSettings, EngineSettings, HostSettings, RequestSettings)
def serve(policy: str, served_name: str | None, model: str | None, trace: Path | None, **flags: Any) -> int:
    """Serves a model over HTTP, to any client of the OpenAI API."""
    edge = Edge(
        tls=_tls(flags.pop("tls_cert"), flags.pop("tls_key")),
        allow_h2c=flags.pop("allow_h2c"),
        access_log=flags.pop("access_log"),
    )
    settings = Settings.of(policy=policy, served_name=served_name, **{"engine_host": ENGINE_HOST, **named(flags)})
    with outlets():
        return _serve_as_told(settings, model, trace, edge)


def _serve_as_told(settings: Settings, model: str | None, trace: Path | None, edge: Edge) -> int:
    with ended_by_interrupts():
        from strata.http.listener import listen
        from strata.http.security import check_public

    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.INFO)
    check_public(settings.serve)
    if few_files := allow_connections(settings.serve.max_connections):
        say(f"strata: {few_files}", sys.stderr)
    # Before the port is open: nobody shall wait at a server that is still fetching.
    path = chosen_model(model)
    # The port before the model: it is the cheaper one to find wrong.
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(listener) for listener in listen(settings.serve)]
        # Some may have been passed in, and have another address than the settings say.
        check_public(settings.serve, sockets)
        return trio.run(_obey, settings, path, trace, edge, sockets)


@attrs.frozen
class Edge:
    """How the server speaks to its clients, apart from the settings."""

    tls: Tls | None
    allow_h2c: bool
    access_log: bool


def _tls(certificate: Path | None, key: Path | None) -> Tls | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("tls", "--tls-cert and --tls-key go together")
    from strata.http.serving import Tls

    return Tls(certificate, key)


async def _obey(
    settings: Settings, model: Path, trace: Path | None, edge: Edge, sockets: Sequence[socket.socket]
) -> int:
    """Serve until told otherwise; the exit code.  What hinders the start comes out as itself, not in a group."""
    ending = Ending(settings.serve.drain_timeout_s)
    try:
        async with trio.open_nursery() as nursery:
            # Before the model is loaded: that may take minutes.
            await nursery.start(ending.follow, nursery.cancel_scope)
            await _serve(settings, model, trace, edge, sockets, ending)
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raised = lone(group)
    else:
        return ending.code
    raise raised


async def _serve(
    settings: Settings,
    model: Path,
    trace: Path | None,
    edge: Edge,
    sockets: Sequence[socket.socket],
    ending: Ending,
) -> None:
    """The server answers before its runtime is there, and has ended before that ends."""
    from strata.http.arriving import Arriving
    from strata.runtime import open_runtime

    arriving = Arriving(settings)
    served = Served(arriving)
    async with trio.open_nursery() as nursery:
        # Beside the engine's start, as what serves takes long to import.
        nursery.start_soon(served.run, settings.serve, edge, sockets, ending)
        async with open_runtime(model, settings=settings, trace=trace) as runtime, ending.watching(runtime):
            arriving.came(runtime)
            try:
                _announce(runtime, await served.addresses())
                notify("READY=1")
                await served.wait()
            finally:
                # Its clients' requests are the runtime's.
                await served.end()


class Served:
    """The server's run, which begins before its runtime and ends before that does."""

    def __init__(self, arriving: Arriving) -> None:
        self._arriving = arriving
        self._addresses: tuple[str, ...] = ()
        self._scope = trio.CancelScope()
        self._listens = trio.Event()
        self._over = trio.Event()

    async def run(self, settings: ServeSettings, edge: Edge, sockets: Sequence[socket.socket], ending: Ending) -> None:
        """Serve until `ending` says so, or `end` is called."""
        try:
            with self._scope:
                # On a thread: meanwhile the engine is heard, and signals are.
                serve_http, app, on_access = await trio.to_thread.run_sync(_edge_of, self._arriving, edge)
                await serve_http(
                    app,
                    settings,
                    sockets=sockets,
                    shutdown_trigger=ending.until_closed,
                    tls=edge.tls,
                    allow_h2c=edge.allow_h2c,
                    on_access=on_access,
                    task_status=self,
                )
        finally:
            self._over.set()

    def started(self, addresses: tuple[str, ...]) -> None:
        """It can be reached; told by the server, whose `task_status` this is."""
        self._addresses = addresses
        self._listens.set()

    async def addresses(self) -> tuple[str, ...]:
        """Where it can be reached, once it can."""
        await self._listens.wait()
        return self._addresses

    async def wait(self) -> None:
        """Until it has ended."""
        await self._over.wait()

    async def end(self) -> None:
        """Now, if it hasn't ended yet; waits for nobody but its own tasks."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._over.wait()


def _edge_of(arriving: Arriving, edge: Edge) -> tuple[Callable[..., Awaitable[None]], Any, OnAccess | None]:
    """What serves, the app, and the access log."""
    from strata.http.access import access_lines, to_logger
    from strata.http.app import create_app
    from strata.http.serving import serve

    return serve, create_app(arriving), access_lines(to_logger) if edge.access_log else None


class Ending:
    """When and how the server ends."""

    def __init__(self, drain_timeout_s: float) -> None:
        self.code = 0
        self._runtime: Runtime | None = None
        """None while the model is loaded: there is nothing to drain then."""
        self._closed = trio.Event()
        self._drain_timeout_s = drain_timeout_s
        # One for the requests and for what the server has still to send or to hear.
        self._deadline: float | None = None

    async def until_closed(self) -> float | None:
        """Until every request has had its last word; returns the deadline for all else, if it was set by then."""
        await self._closed.wait()
        return self._deadline

    @contextlib.asynccontextmanager
    async def watching(self, runtime: Runtime) -> AsyncIterator[None]:
        """From here on it is this runtime that is drained; and its engine's death is noticed."""
        self._runtime = runtime
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._notice_death, runtime)
            yield
            nursery.cancel_scope.cancel()

    async def follow(
        self, everything: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Obey signals; returns only by being cancelled."""
        with trio.open_signal_receiver(*_heeded()) as signals:
            async with trio.open_nursery() as obeying:
                task_status.started()
                await anext(signals)
                if self._runtime is None:
                    say("strata: told to stop before the model was loaded", sys.stderr)
                    notify("STOPPING=1")
                    everything.cancel()
                    return
                obeying.start_soon(self._drain, self._runtime)
                told = await _again(signals)
                self.code = SIGNALLED + told
                obeying.start_soon(self._end_now, self._runtime)
                await _again(signals)
                everything.cancel()

    async def _drain(self, runtime: Runtime) -> None:
        """Nothing new, what has started may end; what has not by the deadline gets its error."""
        say("strata: closing down; once more to end it now", sys.stderr)
        notify("STOPPING=1")
        self._deadline = trio.current_time() + self._drain_timeout_s
        runtime.drain("shutdown")
        with trio.CancelScope(deadline=self._deadline):
            await runtime.wait_idle()
        await runtime.close()
        self._closed.set()

    async def _end_now(self, runtime: Runtime) -> None:
        """What has not ended gets its error at once, and the server a moment to send it."""
        say("strata: ending now", sys.stderr)
        self._deadline = trio.current_time()
        # It waits for no engine; still, nothing of ours shall hinder this.
        with trio.move_on_after(END_NOW_S):
            await runtime.close()
        self._closed.set()

    async def _notice_death(self, runtime: Runtime) -> None:
        reason = await runtime.wait_failed()
        say(f"strata: {reason}", sys.stderr)
        self.code = ENGINE_DIED
        notify("STOPPING=1")
        self._closed.set()


def _heeded() -> tuple[signal.Signals, ...]:
    """A closed terminal ends a server as SIGTERM does; not one that was started to outlive it (`nohup`)."""
    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, *(() if outlives else (signal.SIGHUP,)))


async def _again(signals: AsyncIterator[int]) -> int:
    """The next one that somebody meant: a terminal that closes is told by its shell and by the system, and a service
    manager may send SIGHUP right behind SIGTERM."""
    while (told := await anext(signals)) == signal.SIGHUP:
        pass
    return told


def _announce(runtime: Runtime, addresses: Sequence[str]) -> None:
    """What a person at the terminal wants to know: what is served, where, and a line that shows it."""
    model, settings = runtime.model, runtime.settings
    pages, page_tokens = runtime.statistics().pages_free, settings.engine.page_tokens
    lines = [
        f"Strata {version('strata-serve')} serves {model.id} ({model.quantisation or '?'}, {model.architecture})",
        f"  context {model.context:,} tokens, policy {settings.policy}, {settings.scheduler.max_running} at once",
        f"  on {settings.engine.device}, {pages:,} pages of {page_tokens} tokens: room for {pages * page_tokens:,}",
        *(f"  listening on {address}" for address in addresses),
        f"\n{_example(addresses[0], keyed=_needs_key(settings.serve))}\n",
    ]
    say("\n".join(lines), sys.stdout)


def _needs_key(settings: ServeSettings) -> bool:
    return bool(settings.api_keys) or settings.api_key_file is not None


def _example(address: str, *, keyed: bool) -> str:
    """A curl command for this address that can be pasted as it is; the key, which is no log's business, is the shell's
    variable `API_KEY`."""
    question = {"role": "user", "content": "What is the capital of France?"}
    body = json.dumps({"messages": [question], "temperature": 0, "stream": True})
    where = ["http://localhost/v1/chat/completions"]
    if address.startswith("unix:"):
        where = ["--unix-socket", address.removeprefix("unix:"), *where]
    else:
        where = [f"{address.replace('//0.0.0.0:', '//127.0.0.1:').replace('//[::]:', '//[::1]:')}/v1/chat/completions"]
    insecure = ["--insecure"] if address.startswith("https:") else []
    # Not quoted with the rest: the shell has to put the key in.
    key = ['-H "authorization: Bearer $API_KEY"'] if keyed else []
    command = shlex.join(["curl", "-N", *insecure, *where, "-H", "content-type: application/json"])
    return " ".join([command, *key, shlex.join(["-d", body])])
