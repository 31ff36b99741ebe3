"""The official client, sync, and async under Trio, against the real server on loopback."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
import trio
from api_call import Served, served

from strata.testing import Fault, Script, ScriptedEngine

# Under Trio the client libraries leave async generators to the collector, which Trio remarks on.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(httpx|httpcore|openai):ResourceWarning")

PING: list[Any] = [{"role": "user", "content": "ping"}]


@pytest.fixture(autouse=True)
def _their_generators_end_here() -> Iterator[None]:
    """Before the next test, which would be blamed for them."""
    yield
    gc.collect()


def engine(**named: Any) -> ScriptedEngine:
    times = {"slice_s": 0.001, "step_s": 0.001} | named
    return ScriptedEngine(script=Script(by_text={"ping": "pöng, twice"}), **times)


async def in_thread(server: Served, use: Callable[[openai.OpenAI], Any], key: str = "none") -> Any:
    """`use` with the synchronous client."""

    def run() -> Any:
        with openai.OpenAI(base_url=f"{server.address}/v1", api_key=key, max_retries=0) as client:
            return use(client)

    return await trio.to_thread.run_sync(run)


@asynccontextmanager
async def under_trio(server: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with httpx.AsyncClient(timeout=30) as http:
        yield openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, http_client=http)


async def test_the_sync_client_gets_a_whole_answer():
    async with served(engine()) as server:
        answer = await in_thread(
            server, lambda client: client.chat.completions.create(model="default", messages=PING, logprobs=True)
        )
    assert answer.choices[0].message.content == "pöng, twice"
    assert answer.choices[0].finish_reason == "stop"
    assert len(answer.choices[0].logprobs.content) >= len("pöng, twice".encode())
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.timings["total_s"] > 0


async def test_the_sync_client_gets_a_stream():
    def read(client: openai.OpenAI) -> list[Any]:
        stream = client.chat.completions.create(
            model="default", messages=PING, stream=True, stream_options={"include_usage": True}
        )
        return list(stream)

    async with served(engine()) as server:
        chunks = await in_thread(server, read)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == "pöng, twice"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens >= len(text)
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


async def test_the_async_client_streams_under_trio():
    async with served(engine()) as server, under_trio(server) as client:
        async with await client.chat.completions.create(model="default", messages=PING, stream=True) as stream:
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        models = await client.models.list()
    assert text == "pöng, twice"
    assert [model.id for model in models.data] == [server.runtime.model.id]


async def test_the_client_reads_a_stream_of_comments_alone_for_a_while():
    """B53: with a first sign after a second and more of them, no client stumbles over a comment."""
    async with served(engine(slice_s=1.3), comment_s=0.1) as server:

        def read(client: openai.OpenAI) -> str:
            stream = client.chat.completions.create(model="default", messages=PING, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

        assert await in_thread(server, read) == "pöng, twice"


@pytest.mark.parametrize(
    ("named", "kind"),
    [
        ({"model": "other"}, openai.NotFoundError),
        ({"temperature": 9}, openai.BadRequestError),
        ({"messages": []}, openai.BadRequestError),
        ({"n": 2}, openai.BadRequestError),
    ],
)
async def test_each_refusal_is_the_clients_own_error_type(named, kind):
    """B60: and names the field."""
    async with served(engine()) as server:
        with pytest.raises(kind) as caught:
            await in_thread(
                server, lambda client: client.chat.completions.create(**{"model": "default", "messages": PING, **named})
            )
    assert caught.value.param == next(iter(named))
    assert caught.value.request_id.startswith("req-")


async def test_a_wrong_key_and_a_full_queue_and_a_dead_engine_have_types_too():
    async with served(engine(), api_keys="right") as server:
        with pytest.raises(openai.AuthenticationError):
            await in_thread(server, lambda client: client.models.list(), key="wrong")
        assert await in_thread(server, lambda client: client.models.list(), key="right")
    async with served(engine(faults=[Fault(slice=1)])) as server:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError) as caught:
                await in_thread(server, lambda client: client.chat.completions.create(model="default", messages=PING))
            assert caught.value.status_code == 503


async def test_an_error_in_a_stream_reaches_the_client_as_an_error():
    """B56: what was read before it stays, and it is not taken for the end."""
    seen: list[str] = []

    def read(client: openai.OpenAI) -> None:
        stream = client.chat.completions.create(model="default", messages=PING, stream=True)
        seen.extend(chunk.choices[0].delta.content or "" for chunk in stream)

    async with served(engine(faults=[Fault(step=4)])) as server:
        with pytest.raises(openai.APIError):
            await in_thread(server, read)
    assert "".join(seen) == "pön"


async def test_a_client_that_closes_its_stream_withdraws_its_request():
    async with served(engine(step_s=0.5)) as server, under_trio(server) as client:
        async with await client.chat.completions.create(model="default", messages=PING, stream=True) as stream:
            async for _ in stream:
                break
        line = await server.logged()
        assert server.runtime.statistics().decoding == 0
    assert line["status"] == 499
    assert line["actor"] == "request-1"
