"""What a client costs for as long as its answer streams."""

from __future__ import annotations

import gc
import json
import socket
import tracemalloc
from contextlib import ExitStack
from typing import Final

import trio
from api_call import Served, chat, served

from strata.testing import Script, ScriptedEngine

STREAMS: Final = 40
STREAM_BYTES: Final = 30_000
"""Asked of a stream, its connection with it."""


def ask(server: Served) -> socket.socket:
    """A client that is nothing but a socket, so that what is measured is the server's."""
    body = json.dumps(chat(stream=True, max_tokens=500)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return client


async def until_decoding(server: Served, count: int) -> None:
    while server.runtime.statistics().decoding != count:
        await trio.sleep(0.01)


async def test_an_open_stream_takes_no_more_than_30_kb() -> None:
    engine = ScriptedEngine(script=Script(otherwise=lambda _opened, index: 97 + index % 26), pages=1000, step_s=0.05)
    with trio.fail_after(30), ExitStack() as clients:
        async with served(engine, max_running=2 * STREAMS) as server:
            for _ in range(4):
                # What is loaded and learnt at first use is no stream's.
                clients.enter_context(ask(server))
            await until_decoding(server, 4)
            gc.collect()
            tracemalloc.start()
            for _ in range(STREAMS):
                clients.enter_context(ask(server))
            await until_decoding(server, 4 + STREAMS)
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    assert taken / STREAMS < STREAM_BYTES
