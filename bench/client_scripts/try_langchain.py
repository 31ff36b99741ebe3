"""LangChain's client for OpenAI."""

from __future__ import annotations

import asyncio

import openai
from checks import BASE, MODEL, TOKENS, TOO_MANY, Checks, refused
from langchain_openai import ChatOpenAI


def model(max_tokens: int = TOKENS) -> ChatOpenAI:
    return ChatOpenAI(base_url=BASE, api_key="none", model=MODEL, max_tokens=max_tokens, max_retries=0)


def whole() -> None:
    answer = model().invoke("Say hello.")
    assert answer.content
    assert answer.usage_metadata["output_tokens"] <= TOKENS


def stream() -> None:
    parts = list(model().stream("Say hello.", stream_usage=True))
    assert "".join(part.text for part in parts)
    assert sum((part.usage_metadata or {}).get("output_tokens", 0) for part in parts) <= TOKENS


def asynchronous() -> None:
    async def ask() -> list[str]:
        return [part.text async for part in model().astream("Say hello.")]

    assert "".join(asyncio.run(ask()))


def error() -> None:
    assert refused(lambda: model(TOO_MANY).invoke("Say hello."), openai.BadRequestError).status_code == 400


checks = Checks("langchain-openai")
for check in (whole, stream, asynchronous, error):
    checks.run(check.__name__, check)
checks.report()
