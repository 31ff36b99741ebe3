"""An ASGI application called without a socket, so that time may be virtual; and one served on loopback."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from attrs import define, field, frozen

from strata.http.access import access_lines
from strata.http.app import create_app
from strata.http.serving import serve
from strata.runtime import Runtime, open_runtime
from strata.testing import ScriptedEngine

CHAT = "/v1/chat/completions"


@define
class Answer:
    """What came back, and when (Trio's seconds since the call)."""

    status: int = 0
    headers: dict[str, str] = field(factory=dict)
    parts: list[tuple[float, bytes]] = field(factory=list)
    head_at: float = math.nan
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(part for _, part in self.parts)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The events of a stream, without its end."""
        lines = self.body.decode().split("\n\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(line) for line in data if line != "[DONE]"]

    @property
    def comments(self) -> list[tuple[float, str]]:
        """Each comment line, and when it came."""
        return [(round(at, 3), part.decode().strip()) for at, part in self.parts if part.startswith(b":")]

    @property
    def text(self) -> str:
        deltas = [choice["delta"] for event in self.events for choice in event.get("choices", ())]
        return "".join(delta.get("content", "") for delta in deltas)


async def call(
    app: Any,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    *,
    answer: Answer | None = None,
) -> Answer:
    """One exchange with an application.  `answer` may be given to see it while it comes."""
    answer = answer if answer is not None else Answer()
    sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    named = {"host": "localhost", "content-type": "application/json"} | {
        k.lower(): v for k, v in (headers or {}).items()
    }
    began = trio.current_time()
    unread = [{"type": "http.request", "body": sent, "more_body": False}]

    async def receive() -> Any:
        if unread:
            return unread.pop()
        return await trio.sleep_forever()

    async def send(message: Any) -> None:
        await trio.lowlevel.checkpoint()
        now = trio.current_time() - began
        if message["type"] == "http.response.start":
            answer.status, answer.head_at = message["status"], now
            answer.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        elif message["type"] == "http.response.body":
            if message.get("body"):
                answer.parts.append((now, bytes(message["body"])))
            answer.complete = not message.get("more_body", False)

    await app(_scope(method, path, named), receive, send)
    return answer


def chat(content: str = "hello", **named: Any) -> dict[str, Any]:
    """A chat's body."""
    return {"messages": [{"role": "user", "content": content}], **named}


def _scope(method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    path, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": query.encode("utf-8", "replace"),
        "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "extensions": {},
    }


@frozen
class Served:
    """A server on loopback, and what its access log says."""

    runtime: Runtime
    address: str
    lines: trio.MemoryReceiveChannel[str]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    async def logged(self) -> Any:
        """The next line; an exchange's comes a moment after its answer."""
        with trio.fail_after(10):
            return json.loads(await self.lines.receive())


@asynccontextmanager
async def served(engine: ScriptedEngine | None = None, **named: Any) -> AsyncIterator[Served]:
    """Our app over a scripted engine, on a free port; `named` are settings."""
    options = {name: named.pop(name) for name in ("allow_h2c",) if name in named}
    said, lines = trio.open_memory_channel[str](math.inf)
    async with (
        open_runtime(host=engine or ScriptedEngine(slice_s=0.001, step_s=0.001), port=0, **named) as runtime,
        trio.open_nursery() as nursery,
    ):
        settings = runtime.settings.serve
        serving = partial(serve, create_app(runtime), settings, on_access=access_lines(said.send_nowait), **options)
        (address, *_) = await nursery.start(serving)
        yield Served(runtime, address, lines)
        nursery.cancel_scope.cancel()
