"""Our routes as a Quart-Trio application, or as a blueprint for a user's own.  Builds; decides nothing."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import trio
from quart import Blueprint, Response, request
from quart.blueprints import BlueprintSetupState
from quart_trio import QuartTrio
from werkzeug.exceptions import NotFound

from strata.config import ServeSettings
from strata.errors import ConfigError
from strata.http.admin import admin_routes
from strata.http.arriving import Arriving
from strata.http.chat import chat_routes
from strata.http.openapi import RULE, openapi_route
from strata.http.pump import PumpConnection, use_pumps
from strata.http.route import Edge, add, current_visit, refused
from strata.http.security import check_public
from strata.http.service import service_routes
from strata.http.visit import REQUEST_ID_HEADER
from strata.runtime import Runtime


class Application(QuartTrio):
    """Goes straight to what serves a request: each coroutine on the way is held for as long as an answer streams."""

    asgi_http_class = PumpConnection

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        return self.asgi_app(scope, receive, send)

    def asgi_app(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        if scope["type"] == "http":
            return self.asgi_http_class(self, scope)(receive, send)
        return super().asgi_app(scope, receive, send)


def create_app(runtime: Runtime | Arriving, settings: ServeSettings | None = None) -> QuartTrio:
    """The whole server as an application.  `settings` are the runtime's own unless named.

    Before an `Arriving` runtime is there `/health` answers, and all else is told to come again.

    Raises ConfigError, also where it would listen on a public address without a key.
    """
    chosen = settings or runtime.settings.serve
    check_public(chosen)
    app = Application(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = int(chosen.max_body_mib * 1024 * 1024)
    app.config["BODY_TIMEOUT"] = chosen.body_timeout_s
    # Whether a client takes its answer is watched where it is sent; a long answer is no fault.
    app.config["RESPONSE_TIMEOUT"] = None
    app.register_blueprint(routes(runtime, chosen))
    app.register_error_handler(Exception, _refuse)
    return app


def routes(runtime: Runtime | Arriving, settings: ServeSettings | None = None) -> Blueprint:
    """The same routes, to be registered in a Quart-Trio application of the caller's.

    Keys, Host and Origin are checked on these routes alone.  Raises ConfigError.
    """
    edge = Edge.of(runtime, settings)
    blueprint = Blueprint("strata", __name__)
    table = [*chat_routes(edge), *service_routes(edge), *admin_routes(edge)]
    for route in [*table, openapi_route(edge, table)]:
        add(blueprint, edge, route)
    blueprint.record_once(_stream_by_pump)
    return blueprint


def _stream_by_pump(state: BlueprintSetupState) -> None:
    """Streams need a connection class that knows them.  Raises ConfigError where the user has one of his own."""
    app = state.app
    if not isinstance(app, QuartTrio):
        raise ConfigError("routes", "they need an application of Quart-Trio; its streams are Trio's")
    if issubclass(app.asgi_http_class, PumpConnection):
        return
    if app.asgi_http_class is not QuartTrio.asgi_http_class:
        raise ConfigError("routes", "the application's asgi_http_class has to derive from strata.http.PumpConnection")
    use_pumps(app)


async def _refuse(error: Exception) -> Response:
    """What is refused before a route is found: 404 and 405, in the one shape of errors."""
    await trio.lowlevel.checkpoint()
    visit = current_visit()
    if isinstance(error, NotFound):
        # Under the prefix, if whoever serves the application gave it one.
        error.description = f"nothing is served at this path; {request.root_path}{RULE} names all that is"
    response = refused(error, visit)
    response.headers[REQUEST_ID_HEADER] = visit.request_id
    return response
