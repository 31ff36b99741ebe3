"""Our routes in somebody else's application."""

from __future__ import annotations

import importlib.util
import socket
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio
from api_call import CHAT, call, chat
from quart import Quart
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection

from strata.errors import ConfigError
from strata.http.app import create_app, routes
from strata.http.pump import PumpConnection
from strata.runtime import open_runtime
from strata.testing import Script, ScriptedEngine

EXAMPLE = Path(__file__).parents[2] / "examples" / "mount.py"
PONG = Script(by_text={"Greet": "Good day.", "ping": "pong!"})


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mount", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_example_serves_our_routes_beside_its_own(autojump_clock):
    module = example()
    async with open_runtime(host=ScriptedEngine(script=PONG)) as runtime:
        app = module.make_app(runtime)
        own = await call(app, "GET", "/")
        stream = await call(app, "POST", f"/ai{CHAT}", chat("ping", stream=True))
        whole = await call(app, "POST", f"/ai{CHAT}", chat("ping"))
        refused = await call(app, "POST", f"/ai{CHAT}", chat("ping", n=2))
        missing = await call(app, "GET", "/v1/models")
    assert own.json == {"greeting": "Good day."}
    assert stream.text == "pong!"
    assert stream.body.endswith(b"data: [DONE]\n\n")
    assert whole.json["choices"][0]["message"]["content"] == "pong!"
    assert (refused.status, refused.error["param"]) == (400, "n")
    # What is not ours is refused as its application does it.
    assert (missing.status, missing.headers["content-type"]) == (404, "text/html; charset=utf-8")


def test_the_example_takes_a_port():
    assert example().flags([]) == {"port": 8000}
    assert example().flags(["--port", "8001"]) == {"port": 8001}


async def test_the_example_runs_in_a_nursery_and_answers_on_a_socket():
    module = example()
    async with trio.open_nursery() as nursery:
        address = await nursery.start(partial(module.main, port=0, host=ScriptedEngine(script=PONG)))
        port = int(address.rpartition(":")[2])
        async with await trio.open_tcp_stream("127.0.0.1", port) as client:
            await client.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b"".join([part async for part in client])
        nursery.cancel_scope.cancel()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"Good day." in answer


def test_the_example_says_in_one_line_that_its_port_is_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = example().run(port=port, host=ScriptedEngine(script=PONG))
    assert said.startswith(f"mount.py: can't listen on 127.0.0.1:{port}")
    assert "\n" not in said


async def test_the_document_is_right_under_a_prefix_too(autojump_clock):
    """Its paths are relative to the server that it names."""
    async with open_runtime(host=ScriptedEngine()) as runtime:
        app = QuartTrio("mounted")
        app.register_blueprint(routes(runtime), url_prefix="/ai")
        told = (await call(app, "GET", "/ai/openapi.json")).json
        assert told["servers"] == [{"url": "/ai"}]
        for path in ("/health", "/v1/models"):
            assert path in told["paths"]
            assert (await call(app, "GET", told["servers"][0]["url"] + path)).status == 200


async def test_who_finds_nothing_is_told_where_the_document_is_under_a_prefix_too(autojump_clock):
    """As another application mounts ours whole: ASGI's `root_path`."""
    async with open_runtime(host=ScriptedEngine()) as runtime:
        app = create_app(runtime)

        async def mounted(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "root_path": "/ai"}, receive, send)

        said = (await call(mounted, "GET", "/ai/nowhere")).error["message"]
        assert said == "nothing is served at this path; /ai/openapi.json names all that is"
        assert (await call(mounted, "GET", "/ai/openapi.json")).json["servers"] == [{"url": "/ai"}]


async def test_an_application_that_can_not_stream_is_told_so():
    class Own(TrioASGIHTTPConnection):
        pass

    class Derived(PumpConnection):
        pass

    async with open_runtime(host=ScriptedEngine()) as runtime:
        with pytest.raises(ConfigError, match="Quart-Trio"):
            Quart("asyncio").register_blueprint(routes(runtime))
        app = QuartTrio("own")
        app.asgi_http_class = Own
        with pytest.raises(ConfigError, match="PumpConnection"):
            app.register_blueprint(routes(runtime))
        app = QuartTrio("derived")
        app.asgi_http_class = Derived
        app.register_blueprint(routes(runtime))
        assert app.asgi_http_class is Derived
