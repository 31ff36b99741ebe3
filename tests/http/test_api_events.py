"""The bytes of a streamed answer."""

from __future__ import annotations

import json
import math

import attrs
import pytest

from strata.http.sse import DONE, Events, comment, error_event
from strata.messages import Delta, Figures, Summary, TextLogprob

FIGURES = Figures(
    state="done",
    prompt_tokens=10,
    read_tokens=10,
    written_tokens=3,
    cached_tokens=4,
    queue_s=0.1,
    parks={"short": 2},
    resumes=2,
)


def events(*, include_usage: bool = False) -> Events:
    return Events(id="chatcmpl-1", created=7, model='m"', include_usage=include_usage)


def parsed(data: bytes) -> list[dict]:
    lines = data.decode().split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]


@pytest.mark.parametrize("include_usage", [False, True])
def test_every_event_names_the_answer_and_the_model(include_usage):
    made = events(include_usage=include_usage)
    text = 'a "quote"\n and a é'
    for event in parsed(made.first() + made.delta(Delta(text)) + made.last(Summary("stop", FIGURES))):
        assert (event["id"], event["created"], event["model"]) == ("chatcmpl-1", 7, 'm"')
        assert event["object"] == "chat.completion.chunk"
    (event,) = parsed(made.delta(Delta(text)))
    assert event["choices"] == [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}]
    (event,) = parsed(made.first())
    assert event["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_without_usage_the_last_event_has_the_finish_reason_and_the_timings():
    data = events().last(Summary("length", FIGURES))
    (event,) = parsed(data)
    assert data.endswith(DONE)
    assert event["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}]
    assert event["timings"]["queue_s"] == 0.1
    assert event["timings"]["parks"] == {"short": 2}
    assert "usage" not in event


def test_usage_comes_in_its_own_last_chunk_with_empty_choices_before_the_end():
    """B52: and every chunk before it has it as null."""
    made = events(include_usage=True)
    data = made.first() + made.delta(Delta("x")) + made.last(Summary("stop", FIGURES))
    assert data.endswith(DONE)
    *others, last = parsed(data)
    assert all(event["usage"] is None for event in others)
    assert sum(bool(event["choices"][0]["finish_reason"]) for event in others) == 1
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert last["timings"]["resumes"] == 2


def test_logprobs_have_the_shape_of_openais():
    top = TextLogprob("b", b"b", -math.inf)
    token = TextLogprob("é", "é".encode(), -0.5, (top,))
    (event,) = parsed(events().delta(Delta("é", 1, (token,))))
    assert event["choices"][0]["logprobs"]["content"] == [
        {
            "token": "é",
            "logprob": -0.5,
            "bytes": [195, 169],
            "top_logprobs": [{"token": "b", "logprob": -9999.0, "bytes": [98]}],
        }
    ]


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("queued", b": queued 3\n\n"),
        ("reading", b": reading 10/10\n\n"),
        ("parked (reading)", b": parked\n\n"),
        ("parked (decoding)", b": parked\n\n"),
        ("decoding", b": decoding 3\n\n"),
    ],
)
def test_a_comment_says_where_the_request_stands(state, says):
    assert comment(attrs.evolve(FIGURES, state=state, ahead=3)) == says


def test_progress_is_an_event_with_the_same_figures():
    (event,) = parsed(events().progress(attrs.evolve(FIGURES, state="reading", read_tokens=6)))
    assert event["choices"] == []
    assert event["prompt_progress"] == {"state": "reading", "ahead": 0, "total": 10, "cache": 4, "processed": 6}


def test_an_error_is_an_event_without_an_end():
    assert error_event(b'{"error":{}}') == b'data: {"error":{}}\n\n'
