"""The sockets that clients connect to: opened with our options, or passed in by who started us.

Synchronous, so that a port in use is known before a model is read.  Knows no HTTP and no Trio.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Mapping, Sequence
from typing import Final

from strata.config import ServeSettings
from strata.errors import StartError

SEND_BUFFER_BYTES: Final = 64 * 1024
"""A stalled reader holds this much in the kernel (which doubles it for its own records), and no more."""
UNSENT_BYTES: Final = 16 * 1024
"""A socket is called writable while the kernel has less than this that it hasn't sent, as Trio's own are."""
FIRST_PASSED_FD: Final = 3
"""Where systemd's sockets begin (sd_listen_fds(3))."""
_NOT_HERE: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def listen(settings: ServeSettings, *, environ: Mapping[str, str] = os.environ) -> list[socket.socket]:
    """The listening sockets: systemd's if it passed any, else those of `settings.host` and `settings.port`.

    `host` is a name or an address (`::1`), `unix:/path`, or `fd://3`.  Raises StartError, one line with the address.
    """
    if passed := passed_sockets(settings, environ):
        return passed
    if settings.host.startswith("unix:"):
        return [_listen_unix(settings.host.removeprefix("unix:"), settings)]
    if settings.host.startswith("fd://"):
        return [_adopt(int(settings.host.removeprefix("fd://")), settings)]
    return _listen_inet(settings)


def passed_sockets(settings: ServeSettings, environ: Mapping[str, str]) -> list[socket.socket]:
    """What systemd passed to this very process (LISTEN_PID, LISTEN_FDS); nothing, as a rule."""
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = environ.get("LISTEN_FDS", "")
    if not count.isdecimal():
        raise StartError(f"LISTEN_FDS is {count!r}, not a number of sockets")
    return [_adopt(fd, settings) for fd in range(FIRST_PASSED_FD, FIRST_PASSED_FD + int(count))]


def address_of(listener: socket.socket, *, scheme: str = "http") -> str:
    """As a client would write it: `http://127.0.0.1:8000`, `http://[::1]:8000`, `unix:/run/strata.sock`."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{os.fsdecode(name)}"
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"{scheme}://{host}:{name[1]}"


def _adopt(fd: int, settings: ServeSettings) -> socket.socket:
    """A socket that somebody else opened.  Its address stays as it is, its options become ours."""
    try:
        adopted = socket.socket(fileno=fd)
    except OSError as error:
        raise StartError(f"can't listen on the passed socket {fd}: {error.strerror}") from None
    try:
        _set_options(adopted, settings)
        adopted.listen(settings.backlog)
    except OSError as error:
        adopted.close()
        raise StartError(f"can't listen on the passed socket {fd}: {error.strerror}") from None
    return adopted


def _listen_unix(path: str, settings: ServeSettings) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(path)
        _set_options(listener, settings)
        listener.listen(settings.backlog)
    except (OSError, ValueError) as error:
        listener.close()
        raise StartError(f"can't listen on unix:{path}: {_why(error, 'path')}") from None
    return listener


def _remove_stale(path: str) -> None:
    """A socket file that nobody answers at was left by a server that was killed."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise OSError(errno.ENOTSOCK, "what is there is not a socket; move it away, or choose another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def _listen_inet(settings: ServeSettings) -> list[socket.socket]:
    """One socket for each address of the name; with port 0 they share the port that the first one got."""
    addresses = _resolve(settings.host, settings.port)
    opened: list[socket.socket] = []
    missing: StartError | None = None
    for family, address in addresses:
        port = opened[0].getsockname()[1] if opened and settings.port == 0 else settings.port
        try:
            opened.append(_open(family, (address[0], port, *address[2:]), settings, alone=len(addresses) == 1))
        except OSError as error:
            missing = StartError(f"can't listen on {_shown(address[0], port)}: {_why(error)}")
            # A name may have addresses of a kind that this machine lacks, but not a port that somebody else has.
            if error.errno not in _NOT_HERE:
                _close(opened)
                raise missing from None
    if not opened:
        raise missing or StartError(f"can't listen on {_shown(settings.host, settings.port)}: the name has no address")
    return opened


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int, *tuple[int, ...]]]]:
    bare = host.strip("[]") or None
    try:
        found = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise StartError(f"can't listen on {_shown(host, port)}: {_why(error)}") from None
    kept = {info[4]: info[0] for info in found if info[0] in (socket.AF_INET, socket.AF_INET6)}
    return [(family, (str(address[0]), port, *map(int, address[2:]))) for address, family in kept.items()]


def _open(
    family: socket.AddressFamily, address: tuple[str, int, *tuple[int, ...]], settings: ServeSettings, *, alone: bool
) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not alone:
            # Its IPv4 half is a socket of its own here.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        _set_options(listener, settings)
        listener.bind(address)
        listener.listen(settings.backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def _set_options(listener: socket.socket, settings: ServeSettings) -> None:
    """What every accepted connection inherits."""
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if listener.family in (socket.AF_INET, socket.AF_INET6):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        # Also ends a connection whose client vanished without a word, or reads nothing while nobody writes to it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.stall_timeout_s * 1000))


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _why(error: Exception, other: str = "port (`--port`, or STRATA_PORT)") -> str:
    """`other`: of which another may be free."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"the address is in use; stop what listens there, or choose another {other}"
    return getattr(error, "strerror", None) or str(error)


def _close(opened: Sequence[socket.socket]) -> None:
    for listener in opened:
        listener.close()
