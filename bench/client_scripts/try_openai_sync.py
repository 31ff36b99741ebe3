"""The official Python client, synchronous."""

from __future__ import annotations

from typing import Any

import openai
from checks import BASE, MODEL, QUESTION, TOKENS, TOO_MANY, Checks, refused

client = openai.OpenAI(base_url=BASE, api_key="none", max_retries=0)


def ask(**named: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, "max_tokens": TOKENS, **named})


def whole() -> None:
    answer = ask(seed=1, temperature=0)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def stream() -> None:
    with ask(stream=True, stream_options={"include_usage": True}) as chunks:
        told = list(chunks)
    assert "".join(choice.delta.content or "" for chunk in told for choice in chunk.choices)
    assert told[-1].usage.completion_tokens <= TOKENS
    assert [c.finish_reason for chunk in told for c in chunk.choices if c.finish_reason] in (["stop"], ["length"])


def logprobs() -> None:
    answer = ask(logprobs=True, top_logprobs=3)
    assert all(len(token.top_logprobs) == 3 for token in answer.choices[0].logprobs.content)


def error() -> None:
    told = refused(lambda: ask(max_tokens=TOO_MANY), openai.BadRequestError)
    assert told.status_code == 400
    assert told.param == "max_tokens"


def error_of_a_stream() -> None:
    assert refused(lambda: ask(max_tokens=TOO_MANY, stream=True), openai.BadRequestError).param == "max_tokens"


def unknown_model() -> None:
    assert refused(lambda: ask(model="no-such-model"), openai.NotFoundError).code == "model_not_found"


def models() -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id


checks = Checks("openai")
for check in (whole, stream, logprobs, error, error_of_a_stream, unknown_model, models):
    checks.run(check.__name__, check)
checks.report()
