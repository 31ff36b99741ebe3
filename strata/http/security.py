"""Who may do what: keys, names the server may be called by, and origins.  Pure; knows headers, not the framework.

A browser that was lured to a foreign page can reach a server on this machine; the checks of Host (against names that
were pointed here) and Origin are for that.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final

from strata.addresses import host_of
from strata.config import ServeSettings
from strata.errors import ConfigError
from strata.http.errors import Forbidden, Unauthorised, UnsupportedEncoding, UnsupportedMedia
from strata.values import is_key

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
ANY: Final = "*"
LONGEST_KEY_FILE: Final = 1 << 20
"""Characters."""


class Access(IntEnum):
    """What a route asks for.  `OPEN` needs nothing, as health checks carry no keys."""

    OPEN = 0
    USE = 1
    ADMIN = 2


class Keys:
    """The keys that are known, kept as digests.

    Every key is compared, in constant time, whatever came before: neither the key nor its place is told by the time.
    """

    def __init__(self, api_keys: Iterable[str], admin_key: str | None) -> None:
        self._api = tuple(_digest(key) for key in api_keys)
        self._admin = None if admin_key is None else _digest(admin_key)

    @classmethod
    def of(cls, settings: ServeSettings) -> Keys:
        """With those in `api_key_file`.  Raises ConfigError."""
        from_file = () if settings.api_key_file is None else read_keys(settings.api_key_file)
        return cls((*settings.api_keys, *from_file), settings.admin_key)

    def __repr__(self) -> str:
        return f"<Keys {len(self._api)}{'' if self._admin is None else ' and an admin key'}>"

    @property
    def any(self) -> bool:
        return bool(self._api)

    def is_admin(self, authorization: str | None) -> bool:
        """Whether the admin key was sent; never where there is none."""
        sent = _digest(_bearer(authorization))
        return self._admin is not None and hmac.compare_digest(sent, self._admin)

    def check(self, authorization: str | None, access: Access) -> None:
        """Raises Unauthorised without a known key, Forbidden with one that isn't enough."""
        sent = _digest(_bearer(authorization))
        user = any([hmac.compare_digest(sent, key) for key in self._api])  # noqa: C419  # each one, always
        admin = self.is_admin(authorization)
        if access is Access.OPEN or admin:
            return
        if access is Access.ADMIN and self._admin is not None:
            raise Forbidden("this needs the admin key") if user else Unauthorised("this needs the admin key")
        if self._api and not user:
            raise Unauthorised("this needs a key: `Authorization: Bearer ...`")


class Names:
    """By which Host a request may call this server, and from which origins a page may."""

    def __init__(self, settings: ServeSettings) -> None:
        self._hosts = names_of(settings)
        self._cors = settings.cors_origin

    def check_host(self, host: str | None) -> None:
        """Raises Forbidden.  No browser leaves the Host out, so none is no danger."""
        if self._hosts is None or not host:
            return
        if host_of(host) not in self._hosts:
            raise Forbidden("this server is not called by that Host; --allowed-host names those that it is")

    def allows_origin(self, origin: str | None) -> str | None:
        """The value of `Access-Control-Allow-Origin`, or None."""
        if self._cors is None or origin is None:
            return None
        return self._cors if self._cors in (ANY, origin) else None

    def check_change(self, *, scheme: str, host: str | None, origin: str | None) -> None:
        """No foreign page may send an administrator's POST: not even one that may chat.  Raises Forbidden."""
        if origin is not None and origin != f"{scheme}://{host}":
            raise Forbidden("a page from another origin may not do this")


def names_of(settings: ServeSettings) -> frozenset[str] | None:
    """The hosts that are let in, without ports; None: any."""
    allowed: Iterable[str] = settings.allowed_hosts
    if not allowed and _trusted(settings.host):
        allowed = {*LOOPBACK_NAMES, settings.host}
    # A socket's path or number is no host.
    return None if not allowed or ANY in allowed else frozenset(filter(None, map(host_of, allowed)))


def check_json(content_type: str | None) -> None:
    """What a page may send elsewhere without asking first is never of this type.  Raises UnsupportedMedia."""
    if (content_type or "").partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMedia("send this with `Content-Type: application/json`")


def check_encoding(content_encodings: Sequence[str]) -> None:
    """A body is read as it is.  Raises UnsupportedEncoding where one of these header lines says that it was coded."""
    codings = {coding.strip().lower() for line in content_encodings for coding in line.split(",")}
    if codings - {"", "identity"}:
        raise UnsupportedEncoding("send this as it is, without `Content-Encoding`")


def read_keys(path: Path) -> tuple[str, ...]:
    """One key a line; empty lines and those that begin with # count for nothing.  Raises ConfigError."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            # Of what has no end as much as shows that it is no such file.
            text = file.read(LONGEST_KEY_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("api_key_file", f"{path} can't be read: {type(error).__name__}") from None
    if len(text) > LONGEST_KEY_FILE:
        raise ConfigError("api_key_file", f"{path} has more than {LONGEST_KEY_FILE:,} characters")
    lines = [line.strip() for line in text.splitlines()]
    keys = {at: line for at, line in enumerate(lines, 1) if line and not line.startswith("#")}
    for at, key in keys.items():
        if not is_key(key):
            # A key isn't shown, nor what was meant to be one.
            raise ConfigError("api_key_file", f"{path}, line {at}: a key is printable ASCII without spaces")
    if not keys:
        # To take it for "no key needed" would open what was meant to be closed.
        raise ConfigError("api_key_file", f"{path} holds no key")
    return tuple(keys.values())


def check_public(settings: ServeSettings, listeners: Sequence[socket.socket] | None = None) -> None:
    """Refuse to listen on a public address without a key.  Raises ConfigError.

    Without `listeners` the address is the setting's, and a socket that will be passed in is trusted; with them, it is
    the one that each really has, whoever opened it.
    """
    if settings.api_keys or settings.api_key_file is not None or settings.insecure:
        return
    if listeners is None:
        public = [] if _trusted(settings.host) else [settings.host]
    else:
        public = [str(listener.getsockname()[0]) for listener in listeners if not _is_local(listener)]
    if public:
        raise ConfigError(
            "host", f"{public[0]} can be reached by others: set --api-key (or --insecure to serve everybody)"
        )


def _trusted(host: str) -> bool:
    """Loopback as far as the setting tells; what a passed socket is shows only when it is there."""
    return is_loopback(host) or host.startswith("fd://")


def _is_local(listener: socket.socket) -> bool:
    if listener.family == socket.AF_UNIX:
        return True
    return listener.family in (socket.AF_INET, socket.AF_INET6) and is_loopback(listener.getsockname()[0])


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it: a loopback address, or a socket that is a file."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _bearer(authorization: str | None) -> str:
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
