"""The official Python client, asynchronous: under asyncio and under Trio, as the first argument says."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import trio
from checks import BASE, MODEL, QUESTION, TOKENS, TOO_MANY, Checks


async def ask(client: openai.AsyncOpenAI, **named: Any) -> Any:
    return await client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, "max_tokens": TOKENS, **named})


async def whole(client: openai.AsyncOpenAI) -> None:
    answer = await ask(client)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= TOKENS


async def stream(client: openai.AsyncOpenAI) -> None:
    async with await ask(client, stream=True) as chunks:
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
    assert text


async def left_early(client: openai.AsyncOpenAI) -> None:
    async with await ask(client, stream=True, max_tokens=200) as chunks:
        async for _ in chunks:
            break
    assert (await ask(client)).choices


async def error(client: openai.AsyncOpenAI) -> None:
    told: Any = None
    try:
        await ask(client, max_tokens=TOO_MANY)
    except openai.BadRequestError as refusal:
        told = refusal
    assert told is not None, "it was not refused"
    assert (told.status_code, told.param) == (400, "max_tokens")


async def models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()]


async def main(check: Callable[[openai.AsyncOpenAI], Awaitable[None]]) -> None:
    async with openai.AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0) as client:
        await check(client)


def run(check: Callable[[openai.AsyncOpenAI], Awaitable[None]]) -> None:
    if sys.argv[1] == "trio":
        trio.run(main, check)
    else:
        asyncio.run(main(check))


checks = Checks("openai")
for check in (whole, stream, left_early, error, models):
    checks.run(check.__name__, lambda check=check: run(check))
checks.report()
