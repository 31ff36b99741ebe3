"""The OpenAPI document, made from the routes and their types.  There is nothing in it that the code doesn't say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import trio
from quart import Response, request

from strata.http.errors import ErrorAnswer
from strata.http.route import EVENTS, JSON, Edge, Route, json_response
from strata.http.security import Access
from strata.http.sse import END

RULE: Final = "/openapi.json"
VERSION: Final = "3.1.0"
"""Whose schemas are JSON Schema 2020-12, as msgspec writes them."""

REASONS: Final[Mapping[int, str]] = {
    400: "The request can't be served as asked; `param` names the field",
    401: "No key, or one that isn't known here",
    403: "The key, the Host or the Origin may not do this",
    404: "There is nothing by this name",
    408: "The body took too long to arrive",
    409: "It has ended already, or was cancelled by somebody else",
    413: "The body is larger than the server takes",
    415: "The content type is not application/json, or the body has a Content-Encoding",
    429: "The queue is full; `Retry-After` says when to come again",
    500: "A bug of ours; `code` is in the log",
    503: "The model is being loaded, the engine is gone or the server closes; `Retry-After` says when to come again",
}

_VARIABLE: Final = re.compile(r"<(?:[a-z]+:)?(?P<name>\w+)>")
_REFERENCE: Final = "#/components/schemas/{name}"


def openapi_route(edge: Edge, routes: list[Route]) -> Route:
    """The route that serves the document of all `routes`, itself included."""

    async def openapi() -> Response:
        await trio.lowlevel.checkpoint()
        # Whoever mounts the routes chooses a prefix, which the paths below don't name.
        prefix = request.root_path + request.path.removesuffix(RULE)
        info = {**told["info"], "title": f"Strata: {edge.runtime.model.id}"}
        return json_response({**told, "info": info, "servers": [{"url": prefix or "/"}]})

    route = Route(
        method="GET",
        rule=RULE,
        view=openapi,
        access=Access.USE,
        summary="This document",
        answer=dict[str, Any],
    )
    told = document([*routes, route], title="Strata")
    return route


def document(routes: Iterable[Route], *, title: str) -> dict[str, Any]:
    routes = list(routes)
    kinds = {kind for route in routes for kind in (route.body, route.answer, route.events) if kind is not None}
    ordered = [*sorted(kinds, key=str), ErrorAnswer]
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    components = _told_once(components)
    refs = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(_VARIABLE.sub(r"{\g<name>}", route.rule), {})[route.method.lower()] = _operation(route, refs)
    return {
        "openapi": VERSION,
        "info": {"title": title, "version": "1"},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _told_once(schema: Any) -> Any:
    """Without what the types say twice: to JSON Schema 1.0 is an integer, and to them it is a float."""
    match schema:
        case dict():
            return {name: _told_once(value) for name, value in schema.items()}
        case list():
            whole = any(isinstance(each, dict) and each.get("type") == "integer" for each in schema)
            return [_told_once(each) for each in schema if not (whole and _is_whole_float(each))]
    return schema


def _is_whole_float(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "number" and schema.get("multipleOf") == 1


def _operation(route: Route, refs: Mapping[Any, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}_{route.view.__name__}",
        "responses": _responses(route, refs),
    }
    if names := _VARIABLE.findall(route.rule):
        told["parameters"] = [{"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names]
    if route.body is not None:
        told["requestBody"] = {"required": True, "content": {JSON: {"schema": refs[route.body]}}}
    if route.access is not Access.OPEN:
        # Either none or this one: whether keys are asked for is a setting.
        told["security"] = [{}, {"key": []}]
    return told


def _responses(route: Route, refs: Mapping[Any, Any]) -> dict[str, Any]:
    answer = {JSON: {"schema": refs[route.answer]}} if route.answer is not None else {"text/plain": {}}
    if route.events is not None:
        answer[EVENTS] = {"schema": _event(refs[route.events], refs[ErrorAnswer])}
    told = {"200": {"description": "Done", "content": answer}}
    for status in sorted({*route.errors, *_by_checks(route)}):
        # Readiness tells in its own shape why it isn't.
        kind = route.answer if route.rule == "/ready" and status == 503 else ErrorAnswer
        told[str(status)] = {"description": REASONS[status], "content": {JSON: {"schema": refs[kind]}}}
    return told


def _event(schema: Any, error: Any) -> dict[str, Any]:
    """One event, as a reader of event streams hands it out.  An error ends the stream in the place of `[DONE]`."""
    told = {"type": "string", "contentMediaType": JSON, "contentSchema": {"anyOf": [schema, error]}}
    return {
        "type": "object",
        "properties": {"data": {"anyOf": [{"const": END}, told]}},
        "required": ["data"],
    }


def _by_checks(route: Route) -> tuple[int, ...]:
    """What comes before the view; and what all but the open ones are told as long as there is no runtime."""
    access = (403,) if route.access is Access.OPEN else (401, 403, 503)
    return access if route.method == "GET" else (*access, 415)
