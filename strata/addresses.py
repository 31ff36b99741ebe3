"""Hosts and origins, as people write them and as browsers send them.  Knows no setting and no header.

A room of its own because a setting and a request's header must be read in one way: what the one names and the other
can't say would never match.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

LONGEST_NAME: Final = 253
"""Characters of a name (RFC 1035, 2.3.4, without the lengths of the labels)."""
LAST_PORT: Final = 65535

_LABEL: Final = "[a-z0-9_-]{1,63}"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_PLACE: Final = re.compile(r"(?:\[(?P<address>[^\[\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>[0-9]{0,5}))?")
_ORIGIN: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<place>[^\s/?#,@]+)/?", re.IGNORECASE)
_PORTS: Final = {"http": "80", "https": "443"}
"""That a browser leaves out."""


def host_of(text: str) -> str | None:
    """Without port, brackets, the root's dot, and case; an address in its shortest form.  None where it is no host."""
    text = text.strip()
    if not text.isascii():
        # A browser sends such a name in its other form (xn--...).
        return None
    return _six(text) or _place(text)[0]


def origin_of(text: str) -> str | None:
    """As a browser sends it: in small letters, without a port that goes without saying.  None where it is no origin."""
    found = _ORIGIN.fullmatch(text)
    if found is None or not text.isascii() or not text.isprintable():
        return None
    scheme = found["scheme"].lower()
    if scheme not in _PORTS:
        # An extension's or an app's; what stands in it is theirs.
        return f"{scheme}://{found['place']}"
    host, port = _place(found["place"])
    if host is None:
        return None
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}" + (f":{port}" if port not in ("", _PORTS[scheme]) else "")


def can_listen_at(text: str) -> bool:
    """Whether it may name what to listen on: a name or an address without a port, `unix:/path`, or `fd://3`."""
    if text.startswith("unix:"):
        return len(text) > len("unix:") and "\0" not in text
    if text.startswith("fd://"):
        return re.fullmatch("fd://[0-9]{1,9}", text) is not None
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return re.fullmatch(r"[\w.-]+", bare) is not None or _is_six(bare)


def _place(text: str) -> tuple[str | None, str]:
    """The host and the port, which may be empty."""
    found = _PLACE.fullmatch(text)
    if found is None or int(found["port"] or 0) > LAST_PORT:
        return None, ""
    host = _six(found["address"]) if found["address"] else _name(found["name"])
    return host, found["port"] or ""


def _name(text: str) -> str | None:
    name = text.lower().removesuffix(".")
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        return None
    # What ends in a number is an address (the URL standard, "ends in a number").
    return name if not name.rpartition(".")[2].isdigit() or _is_four(name) else None


def _six(text: str) -> str | None:
    # A scope means something on one machine only, and isn't sent.
    return ipaddress.IPv6Address(text).compressed if _is_six(text) and "%" not in text else None


def _is_six(text: str) -> bool:
    try:
        return bool(ipaddress.IPv6Address(text))
    except ValueError:
        return False


def _is_four(text: str) -> bool:
    try:
        return bool(ipaddress.IPv4Address(text))
    except ValueError:
        return False
