"""A route as data, and the one way in and out of every one of them.

Checks come before the view and the error table behind it, so a view holds only what it is for, and the same routes
behave alike in our own app and in a user's.  Knows no single route.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, cast

import msgspec
import trio
from attrs import field, frozen
from quart import Blueprint, Response, request
from quart_trio.wrappers import TrioResponse

from strata.config import ServeSettings
from strata.http.arriving import Arriving
from strata.http.errors import Refusal, leaf, refusal
from strata.http.security import Access, Keys, Names, check_encoding, check_json
from strata.http.visit import REQUEST_ID_HEADER, Visit, visit_of
from strata.runtime import Runtime

View = Callable[..., Awaitable[Response]]

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
PREFLIGHT_S: Final = 600
DECODING_THREADS: Final = 2
"""Large bodies at once: more would only wait for the same interpreter lock."""


@frozen(kw_only=True)
class Route:
    """One method of one path, and what the OpenAPI document says of it."""

    method: str
    rule: str
    view: View
    access: Access
    summary: str
    body: Any = None
    """The type of the body, None where there is none to read."""
    answer: Any = None
    """The type of a 200's body; None: text."""
    events: Any = None
    """The type of the events, where the answer may be a stream."""
    errors: tuple[int, ...] = ()
    """What it may refuse with, beyond what the checks before it bring."""


@frozen
class Edge:
    """What the routes share."""

    arriving: Arriving
    settings: ServeSettings
    keys: Keys
    names: Names
    threads: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(DECODING_THREADS))

    @classmethod
    def of(cls, runtime: Runtime | Arriving, settings: ServeSettings | None) -> Edge:
        """Raises ConfigError."""
        chosen = settings or runtime.settings.serve
        return cls(Arriving.of(runtime), chosen, Keys.of(chosen), Names(chosen))

    @property
    def runtime(self) -> Runtime:
        """Raises EngineUnavailable while it is being opened."""
        return self.arriving.runtime


def add(blueprint: Blueprint, edge: Edge, route: Route) -> None:
    async def enter(**named: Any) -> Response:
        return await _enter(edge, route, named)

    blueprint.add_url_rule(
        route.rule,
        endpoint=f"{route.method.lower()}_{route.view.__name__}",
        view_func=enter,
        methods=[route.method, "OPTIONS"],
        provide_automatic_options=False,
    )


async def _enter(edge: Edge, route: Route, named: dict[str, Any]) -> Response:
    visit = current_visit()
    try:
        edge.names.check_host(request.headers.get("Host"))
        if request.method == "OPTIONS":
            response = _preflight(edge, route)
            await trio.lowlevel.checkpoint()
        else:
            _check(edge, route)
            response = await route.view(**named)
    except Exception as error:
        response = refused(error, visit)
        await trio.lowlevel.checkpoint()
    _finish(edge, response, visit)
    return response


def _check(edge: Edge, route: Route) -> None:
    edge.keys.check(request.headers.get("Authorization"), route.access)
    if _is_change(route):
        edge.names.check_change(
            scheme=request.scheme, host=request.headers.get("Host"), origin=request.headers.get("Origin")
        )
    if route.method != "GET":
        check_json(request.headers.get("Content-Type"))
        check_encoding(request.headers.getlist("Content-Encoding"))


def _is_change(route: Route) -> bool:
    """An administrator's order, which no page of another origin may give."""
    return route.access is Access.ADMIN and route.method != "GET"


def current_visit() -> Visit:
    return visit_of(cast("MutableMapping[str, Any]", request.scope))


def json_response(value: Any, status: int = 200) -> Response:
    """`value` is small; what may be large is encoded by the caller."""
    return encoded_response(msgspec.json.encode(value), status)


def encoded_response(body: bytes, status: int = 200, content_type: str = JSON) -> TrioResponse:
    response = TrioResponse(body, status=status, content_type=content_type)
    response.headers["Cache-Control"] = "no-store"
    return response


def refused(error: Exception, visit: Visit) -> TrioResponse:
    """The answer to an error that came before any other."""
    told = note(error, visit)
    response = encoded_response(told.encode(), told.status)
    response.headers.extend(told.headers)
    return response


def note(error: Exception, visit: Visit) -> Refusal:
    """The error as it goes out; the log line will name its type, and its id if it has one."""
    told = refusal(error)
    body = told.answer.error
    visit.error = body.code if told.status == 500 and body.code else type(leaf(error)).__name__
    return told


def _preflight(edge: Edge, route: Route) -> Response:
    """A browser asks before it sends what a form couldn't.  Carries no key, so it is answered without one."""
    response = encoded_response(b"", 204)
    response.headers["Allow"] = f"{route.method}, OPTIONS"
    if not _is_change(route) and edge.names.allows_origin(request.headers.get("Origin")) is not None:
        response.headers["Access-Control-Allow-Methods"] = response.headers["Allow"]
        response.headers["Access-Control-Allow-Headers"] = (
            "Authorization, Content-Type, X-Request-Id, X-Request-Priority"
        )
        response.headers["Access-Control-Max-Age"] = str(PREFLIGHT_S)
    return response


def _finish(edge: Edge, response: Response, visit: Visit) -> None:
    response.headers[REQUEST_ID_HEADER] = visit.request_id
    if (allowed := edge.names.allows_origin(request.headers.get("Origin"))) is not None:
        response.headers["Access-Control-Allow-Origin"] = allowed
        response.headers["Access-Control-Expose-Headers"] = f"{REQUEST_ID_HEADER}, Retry-After"
        response.headers.add("Vary", "Origin")
