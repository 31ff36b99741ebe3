"""The server: accepts clients, and closes down in order.  Knows neither routes nor what a request is.

It runs in its caller's nursery, so nothing that a client does may get out of here.  Stock `hypercorn.trio.serve` ends,
and ends that nursery, when one connection fails.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import trio
from attrs import frozen
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext

from strata.config import ServeSettings
from strata.errors import StartError, TryAgain
from strata.http.connection import Connection, Service
from strata.http.errors import refusal
from strata.http.exchange import Limits, OnAccess, encoded
from strata.http.lifespan import Lifespan
from strata.http.listener import address_of, listen
from strata.http.security import check_public
from strata.http.wire import RECEIVE_BYTES, Wire

FLUSH_S: Final = 1.0
"""How long the last words of those that are still there at the deadline may take to go out."""
RETRY_S: Final = 0.1
"""When the process has no file left for another connection."""
_OUT_OF_FILES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_CLIENT_WENT: Final = {
    errno.ECONNABORTED,
    errno.EPROTO,
    errno.EPERM,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENONET,
    errno.ENOPROTOOPT,
    errno.EOPNOTSUPP,
}
"""What accept(2) tells of a client that was gone, or not let in, before we took it."""

Trigger: TypeAlias = Callable[[], Awaitable[float | None]]
"""Returns when the server has to close, with the deadline (Trio's time) if it is not `drain_timeout_s` from then."""

log = logging.getLogger("strata.http")


@frozen
class Tls:
    """The server's certificate chain and its key, as PEM files."""

    certfile: Path
    keyfile: Path


async def serve(
    app: Any,
    settings: ServeSettings,
    *,
    sockets: Sequence[socket.socket] | None = None,
    shutdown_trigger: Trigger = trio.sleep_forever,
    tls: Tls | None = None,
    allow_h2c: bool = False,
    on_access: OnAccess | None = None,
    task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an ASGI app until `shutdown_trigger()` returns: then no more is accepted, idle clients are closed, and what
    is in flight may go on for `drain_timeout_s`, or to the deadline that the trigger returned (Trio's time).  Whoever
    has no answer by then gets 503; `FLUSH_S` later all is cut.  A cancel ends it now.

    `task_status` is told the addresses when they can be reached: `await nursery.start(serve, ...)` returns them.
    `sockets` (from `listen`) become the server's, which closes them.  Raises StartError, before anything was served:
    also where others can reach it and `settings` name no key.
    """
    listeners = list(sockets) if sockets is not None else listen(settings)
    try:
        check_public(settings, listeners)
        server = Server(app, settings, tls=tls, allow_h2c=allow_h2c, on_access=on_access)
        await _serve_alive(app, server, listeners, shutdown_trigger, task_status)
    finally:
        for listener in listeners:
            listener.close()


async def _serve_alive(
    app: Any,
    server: Server,
    listeners: Sequence[socket.socket],
    shutdown_trigger: Trigger,
    task_status: trio.TaskStatus[tuple[str, ...]],
) -> None:
    """Between the app's start and its end."""
    lifespan = Lifespan(app)
    failure: StartError | None = None
    async with trio.open_nursery() as nursery:
        try:
            await nursery.start(lifespan.run)
        except StartError as error:
            failure = error
        else:
            await server.run(listeners, shutdown_trigger, task_status)
            lifespan.over.set()
    if failure is not None:
        raise failure


class Server:
    """The clients of one app."""

    def __init__(
        self, app: Any, settings: ServeSettings, *, tls: Tls | None, allow_h2c: bool, on_access: OnAccess | None
    ) -> None:
        self._settings = settings
        self._connections: set[Connection] = set()
        self._left = trio.lowlevel.ParkingLot()
        config = _hypercorn_config(tls)
        self._service = Service(
            app=app,
            config=config,
            context=WorkerContext(None),
            limits=Limits(int(settings.max_body_mib * 2**20), settings.body_timeout_s),
            stall_s=settings.stall_timeout_s,
            keep_alive_s=settings.keep_alive_s,
            allow_h2c=allow_h2c,
            tls=_tls_context(config, tls),
            on_access=on_access,
        )

    def __repr__(self) -> str:
        return f"<Server {len(self._connections)} connections>"

    async def run(
        self,
        listeners: Sequence[socket.socket],
        shutdown_trigger: Trigger,
        task_status: trio.TaskStatus[tuple[str, ...]],
    ) -> None:
        scheme = "http" if self._service.tls is None else "https"
        async with trio.open_nursery() as clients:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(self._accept, listener, clients)
                task_status.started(tuple(address_of(listener, scheme=scheme) for listener in listeners))
                deadline = await shutdown_trigger()
                accepting.cancel_scope.cancel()
            for listener in listeners:
                listener.close()
            await self._drain(trio.current_time() + self._settings.drain_timeout_s if deadline is None else deadline)
            clients.cancel_scope.deadline = trio.current_time() + FLUSH_S

    async def _drain(self, deadline: float) -> None:
        """Returns when all clients have gone, or have been told at the deadline that they must."""
        # Those in flight see this when their answer is whole, and close.
        await self._service.context.terminated.set()
        for connection in self._connections:
            connection.end_if_idle()
        with trio.CancelScope(deadline=deadline):
            await trio.lowlevel.checkpoint()
            while self._connections:
                await self._left.park()
        for connection in self._connections:
            connection.close_down()

    async def _accept(self, listener: socket.socket, clients: trio.Nursery) -> None:
        listening = trio.socket.from_stdlib_socket(listener)
        while True:
            try:
                accepted, _ = await listening.accept()
            except OSError as error:
                if error.errno in _OUT_OF_FILES:
                    await self._free_a_file(listener, error)
                elif error.errno not in _CLIENT_WENT:
                    raise
                await trio.lowlevel.checkpoint()
            else:
                self._admit(socket.socket(fileno=accepted.detach()), clients)

    async def _free_a_file(self, listener: socket.socket, error: OSError) -> None:
        """As at `max_connections`: who waits for nothing gives way; else somebody has to leave first."""
        # The kernel wants a file before it looks whether there is anybody to accept.
        await trio.lowlevel.wait_readable(listener)
        if not self._make_room():
            log.warning("can't accept a client for now: %s", error.strerror)
        with trio.move_on_after(RETRY_S):
            await self._left.park()

    def _admit(self, accepted: socket.socket, clients: trio.Nursery) -> None:
        if len(self._connections) >= self._settings.max_connections and not self._make_room():
            self._turn_away(accepted)
            return
        connection = Connection(Wire(accepted, stall_s=self._settings.stall_timeout_s), self._service)
        self._connections.add(connection)
        clients.start_soon(connection.run, self._forget)

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._left.unpark_all()

    def _make_room(self) -> bool:
        """End the connection that has been idle for longest: one that waits for nothing gives way to one that asks."""
        oldest = min((c for c in self._connections if c.idle), key=lambda c: c.idle_since, default=None)
        if oldest is not None:
            oldest.end_if_idle()
        return oldest is not None

    def _turn_away(self, accepted: socket.socket) -> None:
        """Answer 503 with what can be said without waiting."""
        with accepted, contextlib.suppress(OSError):
            accepted.setblocking(False)
            if self._service.tls is None:
                accepted.send(_busy(), socket.MSG_NOSIGNAL)
                accepted.shutdown(socket.SHUT_WR)
                # Unread bytes would turn the close into a reset, which can overtake the answer.
                accepted.recv(RECEIVE_BYTES)


def _busy() -> bytes:
    refused = refusal(TryAgain("too many connections; try again soon"))
    headers, body = encoded(refused)
    lines = [b"HTTP/1.1 503 Service Unavailable", b"connection: close", *(b"%b: %b" % pair for pair in headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _hypercorn_config(tls: Tls | None) -> Config:
    config = Config()
    config.include_server_header = False
    config.errorlog = log
    # Its counting closes HTTP/2 connections under requests in flight, and serves nobody here.
    config.keep_alive_max_requests = sys.maxsize
    if tls is not None:
        config.certfile, config.keyfile = str(tls.certfile), str(tls.keyfile)
        # Otherwise a key with a pass phrase is asked for it on the terminal, and all stands still meanwhile.
        config.keyfile_password = ""
    return config


def _tls_context(config: Config, tls: Tls | None) -> ssl.SSLContext | None:
    try:
        return config.create_ssl_context()
    except (OSError, ssl.SSLError) as error:
        where = f"{tls.certfile} and {tls.keyfile}" if tls is not None else "nothing"
        raise StartError(f"can't use the certificate and key in {where}: {error.strerror or error}") from None
