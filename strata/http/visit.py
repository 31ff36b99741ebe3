"""One exchange as its log line will tell it.  Holds names and figures; no text of a prompt or answer gets in here."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, MutableMapping
from typing import Any, Final

from attrs import define

from strata.messages import Figures

REQUEST_ID_HEADER: Final = "X-Request-Id"
REQUEST_ID_LENGTH: Final = 128
"""Enough for any tracing system's; more only fills logs."""

_KEY: Final = "strata.visit"
_STRANGE: Final = re.compile(r"[^A-Za-z0-9._:/+=@-]")


@define
class Visit:
    """Lives in the ASGI scope, so that whoever sees the exchange can add what it knows."""

    request_id: str
    actor: str | None = None
    stream: bool = False
    figures: Figures | None = None
    finish_reason: str | None = None
    error: str | None = None
    """The error's type, and the id of one that is a bug of ours."""


def visit_of(scope: MutableMapping[str, Any]) -> Visit:
    """The visit of this exchange, made when first asked for."""
    visit = scope.get(_KEY)
    if not isinstance(visit, Visit):
        visit = scope[_KEY] = Visit(request_id(scope.get("headers", ())))
    return visit


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's own `X-Request-Id`, cut to what a log and a header can bear, else one made here."""
    wanted = REQUEST_ID_HEADER.lower().encode()
    for name, value in headers:
        if name.lower() == wanted and (kept := _STRANGE.sub("", value.decode("latin-1"))[:REQUEST_ID_LENGTH]):
            return kept
    return f"req-{uuid.uuid4().hex}"
