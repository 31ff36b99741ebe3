"""`strata serve` as a process of its own on loopback, and the few ways in which tests talk to it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field
from prometheus_client.parser import text_string_to_metric_families

START_TIMEOUT_S = 120.0
TIMEOUT_S = 120.0
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


def strata(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "strata", *map(str, arguments)]


def run(*arguments: str | Path, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    return subprocess.run(
        strata(*arguments),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        env=None if environ is None else {**os.environ, **environ},
        check=False,
    )


@define
class Server:
    """A running server.  `said` is what it wrote to its terminal so far."""

    process: subprocess.Popen[str]
    port: int
    said: list[str] = field(factory=list)
    up: threading.Event = field(factory=threading.Event)
    """Set when it listens, or has ended."""

    def listen_to(self, output: Iterable[str]) -> None:
        for line in output:
            self.said.append(line)
            if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                self.up.set()
        self.up.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> tuple[int, str]:
        return self._ask("GET", path, None)

    def post(self, path: str, body: Any, headers: Mapping[str, str] = JSON) -> tuple[int, str]:
        return self._ask("POST", path, json.dumps(body), headers)

    def chat(self, content: str, **named: Any) -> dict[str, Any]:
        """A whole answer; it must succeed."""
        status, text = self.post(CHAT, chat_body(content, **named))
        assert status == 200, text
        answer: dict[str, Any] = json.loads(text)
        return answer

    def figure(self, name: str, **labels: str) -> float:
        """The sum of the samples of /metrics that have this name and these labels."""
        _, text = self.get("/metrics")
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        found = [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
        assert found, f"there is no {name} with {labels}"
        return sum(found)

    def requests(self) -> dict[str, dict[str, Any]]:
        """The request actors that there are now, by id."""
        _, text = self.get("/admin/actors")
        return {actor["id"]: actor for actor in json.loads(text)["actors"] if actor["kind"] == "request"}

    def actor(self, name: str) -> dict[str, Any]:
        status, text = self.get(f"/admin/actors/{name}")
        assert status == 200, text
        detail: dict[str, Any] = json.loads(text)
        return detail

    def logged(self) -> list[dict[str, Any]]:
        """The lines of the access log so far."""
        return [json.loads(line) for line in list(self.said) if line.startswith("{")]

    def line_of(self, request_id: str) -> dict[str, Any]:
        """The access log's line of the request that was sent with this `X-Request-Id`; it comes when that is over."""
        found: dict[str, Any] = until(
            lambda: next((line for line in self.logged() if line["request_id"] == request_id), None),
            f"{request_id} is logged",
        )
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_TIMEOUT_S)

    def _ask(self, method: str, path: str, body: str | None, headers: Mapping[str, str] = JSON) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


def children(pid: int) -> list[int]:
    """The processes that this one has started and that run (Linux)."""
    return [int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _parent(stat) == pid]


def _parent(stat: Path) -> int:
    """Of a process that may have ended meanwhile, or wait to be buried: 0."""
    try:
        # After the name, which may hold anything: the state and the parent.
        state, parent = stat.read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return 0
    return 0 if state == "Z" else int(parent)


def chat_body(content: str, **named: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, **named}


@contextmanager
def served(*arguments: str | Path) -> Iterator[Server]:
    """A server with these flags, ready; ended afterwards whatever happened."""
    command = strata("serve", "--port", "0", *arguments)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    server = Server(process, 0)
    # Read to the end: a full pipe would stop the server.
    reader = threading.Thread(target=server.listen_to, args=(process.stdout,))
    reader.start()
    try:
        assert server.up.wait(START_TIMEOUT_S), "it takes too long to start"
        assert server.port, f"it did not start: {''.join(server.said)}"
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        process.stdout.close()


def until(holds: Callable[[], Any], what: str) -> Any:
    """Ask another process again and again, since it can't wake us; returns what `holds` found."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.02)
    raise AssertionError(f"it never came to this: {what}")


class RawClient:
    """A bare socket, so that a test can leave in any way."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)
        self.received = b""

    def post(self, body: bytes, *, length: int | None = None, headers: str = "") -> None:
        """A chat's body, or the first part of one that is `length` bytes long."""
        head = f"POST {CHAT} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{headers}"
        self.socket.sendall(f"{head}content-length: {length or len(body)}\r\n\r\n".encode() + body)

    def read_until(self, word: bytes) -> bytes:
        """What has come, once `word` is in it; all of it if the server closed before."""
        while word not in self.received:
            data = self.socket.recv(65536)
            if not data:
                break
            self.received += data
        return self.received

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)


class RawChat(RawClient):
    """A chat that was sent whole."""

    def __init__(self, server: Server, content: str, **named: Any) -> None:
        super().__init__(server)
        self.post(json.dumps(chat_body(content, **named)).encode())


class Stream(threading.Thread):
    """A streaming chat in a thread of its own; `text` and `usage` are there after `join`."""

    def __init__(self, server: Server, content: str, **named: Any) -> None:
        super().__init__()
        self.server = server
        self.body = chat_body(content, stream=True, stream_options={"include_usage": True}, **named)
        self.began = threading.Event()
        self.text = ""
        self.usage: dict[str, Any] = {}
        self.finish: str | None = None
        self.error: Any = None
        self.done = False
        self.status = 0
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", CHAT, json.dumps(self.body), JSON)
            answer = connection.getresponse()
            self.status = answer.status
            if answer.status != 200:
                self.error = json.loads(answer.read())["error"]
            for line in answer:
                self._take(line.decode().strip())
        finally:
            connection.close()
            self.began.set()

    def whole(self) -> str:
        """The answer, which must have come whole."""
        self.join()
        assert self.error is None, self.error
        assert self.done
        assert self.finish
        return self.text

    def _take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            self.error = event.get("error")
            self.usage = event.get("usage") or self.usage
            for choice in event.get("choices", ()):
                self.text += choice["delta"].get("content") or ""
                self.finish = choice["finish_reason"] or self.finish
                if choice["delta"].get("content"):
                    self.began.set()
