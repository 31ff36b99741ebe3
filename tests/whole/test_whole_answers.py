"""The right tokens, whatever else is going on: a real model behind a real socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
import trio
from served import Server, Stream, until

GOLDEN = json.loads(Path(__file__).parent.with_name("data").joinpath("golden_smollm2.json").read_text())["cases"]
END = "<|im_end|>"
LONG = "river stone market signal garden copper winter engine letter bridge harbor meadow " * 30


def expected(case: dict[str, Any]) -> tuple[str, str]:
    """The answer's text and its finish reason."""
    ended = case["text"].endswith(END)
    return case["text"].removesuffix(END), "stop" if ended else "length"


@pytest.mark.parametrize("case", GOLDEN, ids=[case["prompt"][:30] for case in GOLDEN])
def test_a_greedy_answer_is_the_golden_one(default_server: Server, case: dict[str, Any]) -> None:
    answer = default_server.chat(case["prompt"], max_tokens=48)
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == expected(case)
    assert answer["usage"]["prompt_tokens"] == len(case["prompt_ids"])
    assert answer["usage"]["completion_tokens"] == len(case["greedy_ids"])


def test_answers_that_are_written_together_are_the_ones_that_are_written_alone(default_server: Server) -> None:
    """B54: batching changes when a token comes, never which."""
    streams = [Stream(default_server, case["prompt"], max_tokens=48) for case in GOLDEN]
    for stream, case in zip(streams, GOLDEN, strict=True):
        assert (stream.whole(), stream.finish) == expected(case)
        assert stream.usage["completion_tokens"] == len(case["greedy_ids"])


def test_a_seed_gives_its_text_again_alone_or_beside_others(default_server: Server) -> None:
    """B54: the same seed, the same sampled text; another seed, another text."""
    asked: dict[str, Any] = {"temperature": 1.2, "seed": 11, "max_tokens": 24, "ignore_eos": True}
    alone = Stream(default_server, "Tell me about the sea.", **asked).whole()
    beside = Stream(default_server, LONG, max_tokens=8)
    again = Stream(default_server, "Tell me about the sea.", **asked).whole()
    beside.whole()
    assert again == alone
    assert Stream(default_server, "Tell me about the sea.", **{**asked, "seed": 12}).whole() != alone


def test_a_short_request_parks_the_long_read_once_and_both_answers_are_right(default_server: Server) -> None:
    """B02: long parks, short ends, long resumes, long ends; one park and one resume."""
    # A beginning that no other test has: what is cached of it needs no reading.
    unread = f"All at once: {LONG}"
    long = Stream(default_server, unread, max_tokens=8)
    reading = until(lambda: {n: a for n, a in default_server.requests().items() if a["state"] == "reading"}, "it reads")
    (name,) = reading
    short = Stream(default_server, GOLDEN[0]["prompt"], max_tokens=48)
    assert (short.whole(), short.finish) == expected(GOLDEN[0])
    assert long.whole() == Stream(default_server, unread, max_tokens=8).whole()
    detail = default_server.actor(name)
    states = [change["state"] for change in detail["history"]]
    assert states == ["queued", "reading", "parked (reading)", "reading", "decoding", "done"]
    assert detail["info"]["figures"]["parks"] == {"short": 1}
    assert detail["info"]["figures"]["resumes"] == 1


def test_the_official_client_reads_a_stream(default_server: Server) -> None:
    client = openai.OpenAI(base_url=f"{default_server.url}/v1", api_key="none", max_retries=0)
    with (
        client,
        client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": GOLDEN[0]["prompt"]}],
            temperature=0,
            max_tokens=48,
            stream=True,
            stream_options={"include_usage": True},
        ) as stream,
    ):
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == expected(GOLDEN[0])[0]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(GOLDEN[0]["greedy_ids"])


async def ask_async(url: str) -> str | None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer = await client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": GOLDEN[0]["prompt"]}],
            temperature=0,
            max_tokens=48,
        )
        return answer.choices[0].message.content


def test_the_official_async_client_works_under_asyncio(default_server: Server) -> None:
    assert asyncio.run(ask_async(default_server.url)) == expected(GOLDEN[0])[0]


def test_the_official_async_client_works_under_trio(default_server: Server) -> None:
    assert trio.run(ask_async, default_server.url) == expected(GOLDEN[0])[0]


def test_a_prompt_that_is_longer_than_the_context_is_refused_with_both_sizes(default_server: Server) -> None:
    """B11: 400 that names both sizes, and the next request is served as if it had not come."""
    status, text = default_server.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi " * 9000}]}
    )
    error = json.loads(text)["error"]
    assert status == 400
    assert error["code"] == "context_length_exceeded"
    assert "8192" in error["message"].replace(",", "")
    assert error["param"] == "messages"
    assert default_server.chat(GOLDEN[0]["prompt"], max_tokens=4)["usage"]["completion_tokens"] == 4
