"""The access log: one JSON line an exchange, written when it is over.  Sees names and figures, never a text."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from strata.http.exchange import Access, OnAccess
from strata.http.visit import Visit, visit_of

Log = Callable[[str], None]
PATH_LENGTH: Final = 256
"""A longer path is noise, and perhaps an attack on the log."""

_logger: Final = logging.getLogger("strata.access")


def to_logger(line: str) -> None:
    """Where the lines go unless another place is named: the logger `strata.access`, as information."""
    _logger.info("%s", line)


def access_lines(log: Log) -> OnAccess:
    """What the server calls when an exchange is over."""
    return lambda access: log(line(access))


def line(access: Access) -> str:
    """The exchange as JSON, without the line's end."""
    scope = access.scope
    visit = visit_of(scope)
    told: dict[str, Any] = {
        "time": round(time.time(), 3),
        "method": scope["method"],
        "path": scope["path"][:PATH_LENGTH],
        "status": access.status,
        "ms": round(access.seconds * 1000, 1),
        "request_id": visit.request_id,
        "client": (scope.get("client") or ("",))[0],
        "http": scope.get("http_version", ""),
    }
    return msgspec.json.encode(told | _of_request(visit)).decode()


def _of_request(visit: Visit) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if visit.actor is not None:
        told |= {"actor": visit.actor, "stream": visit.stream}
    if visit.figures is not None:
        figures = visit.figures
        told |= {
            "prompt_tokens": figures.prompt_tokens,
            "completion_tokens": figures.written_tokens,
            "queue_ms": round(figures.queue_s * 1000, 1),
            "ttft_ms": None if figures.ttft_s is None else round(figures.ttft_s * 1000, 1),
        }
    if visit.finish_reason is not None:
        told["finish_reason"] = visit.finish_reason
    if visit.error is not None:
        told["error"] = visit.error
    return told
