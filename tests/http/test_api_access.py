"""Request ids and the access log's lines."""

from __future__ import annotations

import json
import logging

import pytest

from strata.http.access import access_lines, line, to_logger
from strata.http.exchange import Access
from strata.http.visit import request_id, visit_of
from strata.messages import Figures

CHAT = "/v1/chat/completions"
SCOPE = {
    "method": "POST",
    "path": CHAT,
    "client": ("10.0.0.1", 5),
    "http_version": "2",
    "headers": [],
}


@pytest.mark.parametrize(
    ("sent", "kept"),
    [(b"abc-1.2_3:/+=@", "abc-1.2_3:/+=@"), (b"a b\r\nc\xff", "abc"), (b"x" * 1000, "x" * 128)],
)
def test_a_request_id_is_kept_as_far_as_a_log_can_bear_it(sent, kept):
    assert request_id([(b"X-Request-ID", sent)]) == kept


@pytest.mark.parametrize("headers", [[], [(b"x-request-id", b"")], [(b"x-request-id", b" \xff\n")]])
def test_without_a_request_id_one_is_made(headers):
    made = request_id(headers)
    assert made.startswith("req-")
    assert made != request_id(headers)


def test_a_line_tells_figures_and_names():
    scope = dict(SCOPE)
    visit = visit_of(scope)
    visit.actor, visit.stream, visit.finish_reason = "request-7", True, "stop"
    visit.figures = Figures(state="done", prompt_tokens=5, read_tokens=5, written_tokens=2, queue_s=0.0015, ttft_s=0.25)
    told = json.loads(line(Access(scope, 200, 1.23456)))
    assert told.pop("time") > 1e9
    assert told == {
        "method": "POST",
        "path": CHAT,
        "status": 200,
        "ms": 1234.6,
        "request_id": visit.request_id,
        "client": "10.0.0.1",
        "http": "2",
        "actor": "request-7",
        "stream": True,
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "queue_ms": 1.5,
        "ttft_ms": 250.0,
        "finish_reason": "stop",
    }


def test_a_line_stays_one_line_and_short_whatever_the_path():
    scope = SCOPE | {"path": '/\n"' + "x" * 10_000, "client": None}
    told = line(Access(scope, 404, 0.0))
    assert "\n" not in told
    assert len(told) < 600


def test_lines_go_where_they_are_wanted(caplog):
    lines: list[str] = []
    access_lines(lines.append)(Access(dict(SCOPE), 200, 0.0))
    assert [json.loads(told)["status"] for told in lines] == [200]
    caplog.set_level(logging.INFO, "strata.access")
    access_lines(to_logger)(Access(dict(SCOPE), 499, 0.0))
    assert '"status":499' in caplog.text
