"""LiteLLM, as a gateway would use it: the provider `openai` with a base of ours."""

from __future__ import annotations

import asyncio
import os
from typing import Any

# It would fetch a price list from the network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from checks import BASE, MODEL, QUESTION, TOKENS, TOO_MANY, Checks, refused

ASKED: dict[str, Any] = {
    "model": f"openai/{MODEL}",
    "messages": QUESTION,
    "max_tokens": TOKENS,
    "api_base": BASE,
    "api_key": "none",
    "num_retries": 0,
}


def whole() -> None:
    answer = litellm.completion(**ASKED)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= TOKENS


def stream() -> None:
    chunks = list(litellm.completion(**ASKED, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert litellm.stream_chunk_builder(chunks).usage.completion_tokens <= TOKENS


def asynchronous() -> None:
    async def ask() -> str:
        chunks = await litellm.acompletion(**ASKED, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    assert asyncio.run(ask())


def error() -> None:
    told = refused(lambda: litellm.completion(**(ASKED | {"max_tokens": TOO_MANY})), litellm.BadRequestError)
    assert told.status_code == 400
    assert "max_tokens" in str(told)


checks = Checks("litellm")
for check in (whole, stream, asynchronous, error):
    checks.run(check.__name__, check)
checks.report()
