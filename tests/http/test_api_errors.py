"""One table from an error to what its reader sees."""

from __future__ import annotations

import json
import logging

import pytest
from werkzeug.exceptions import MethodNotAllowed, NotFound, RequestEntityTooLarge, RequestTimeout

import strata.errors
from strata.errors import (
    AlreadyDone,
    EngineUnavailable,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    PromptTooLong,
    RequestCancelled,
    SequenceFailed,
    ShuttingDown,
    StartError,
    StrataError,
    UnknownRequest,
    WaitedTooLong,
)
from strata.http.errors import (
    TABLE,
    BodyTooLarge,
    Forbidden,
    Unauthorised,
    UnsupportedEncoding,
    UnsupportedMedia,
    refusal,
)

ROWS = [
    (InvalidRequest("m", param="p", code="c"), 400, "invalid_request_error", "p", "c"),
    (PromptTooLong("m", tokens=9, limit=8), 400, "invalid_request_error", "messages", "context_length_exceeded"),
    (Unauthorised("m"), 401, "authentication_error", None, "invalid_api_key"),
    (Forbidden("m"), 403, "permission_error", None, None),
    (ModelNotFound("x"), 404, "invalid_request_error", "model", "model_not_found"),
    (UnknownRequest("m"), 404, "not_found_error", None, "unknown_request"),
    (AlreadyDone("m"), 409, "conflict_error", None, "already_done"),
    (RequestCancelled("admin"), 409, "request_cancelled", None, None),
    (BodyTooLarge("m"), 413, "invalid_request_error", None, "body_too_large"),
    (UnsupportedMedia("m"), 415, "invalid_request_error", None, "unsupported_media_type"),
    (UnsupportedEncoding("m"), 415, "invalid_request_error", None, "unsupported_content_encoding"),
    (Overloaded("m", retry_after_s=2.2), 429, "overloaded", None, None),
    (EngineUnavailable("m"), 503, "engine_unavailable", None, None),
    (ShuttingDown("m"), 503, "shutting_down", None, None),
    (WaitedTooLong("m"), 503, "try_again", None, None),
    (SequenceFailed("m"), 500, "internal_error", None, "sequence_failed"),
    (InternalError("m", error_id="err-1"), 500, "internal_error", None, "err-1"),
    (NotFound(), 404, "not_found_error", None, None),
    (MethodNotAllowed(), 405, "method_not_allowed", None, None),
    (RequestTimeout(), 408, "timeout_error", None, None),
    (RequestEntityTooLarge(), 413, "invalid_request_error", None, "body_too_large"),
]


@pytest.mark.parametrize(("error", "status", "kind", "param", "code"), ROWS, ids=lambda row: type(row).__name__)
def test_each_error_has_its_status_and_the_one_shape(error, status, kind, param, code):
    told = refusal(error)
    body = json.loads(told.encode())
    assert told.status == status
    assert list(body) == ["error"]
    message = body["error"].pop("message")
    assert message
    assert body["error"] == {"type": kind, "param": param, "code": code}


def test_every_error_that_a_request_can_meet_is_in_the_table():
    kinds = [kind for kind in vars(strata.errors).values() if isinstance(kind, type) and issubclass(kind, StrataError)]
    untold = [kind for kind in kinds if not any(base in TABLE for base in kind.__mro__)]
    ours = {"StrataError", "IllegalTransition", "ActorGone", "DeviceFault", "OutOfDeviceMemory"}
    assert {kind.__name__ for kind in untold if not issubclass(kind, StartError)} <= ours


def test_what_may_succeed_later_says_when():
    assert dict(refusal(Overloaded("m", retry_after_s=2.2)).headers) == {"Retry-After": "3"}
    assert dict(refusal(ShuttingDown("m", retry_after_s=0.0)).headers) == {"Retry-After": "1"}
    assert refusal(InvalidRequest("m")).headers == ()


def test_a_cancelled_request_is_not_sent_again_by_clients_that_repeat_a_conflict():
    assert dict(refusal(RequestCancelled("admin")).headers) == {"X-Should-Retry": "false"}


def test_a_refused_method_names_those_that_are_allowed():
    assert dict(refusal(MethodNotAllowed(["GET"])).headers) == {"Allow": "GET"}


def test_a_group_with_one_error_is_that_error():
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [Overloaded("m")])])
    assert refusal(group).status == 429


@pytest.mark.parametrize("error", [KeyError("a secret prompt"), ExceptionGroup("g", [KeyError("a secret prompt")] * 2)])
def test_a_bug_of_ours_has_an_id_that_is_in_the_log_and_no_text(error, caplog):
    """B65: what an exception quotes is neither told nor logged; the place where it was raised is."""
    caplog.set_level(logging.DEBUG)
    try:
        raise error
    except Exception as raised:
        told = refusal(raised)
    body = told.answer.error
    assert told.status == 500
    assert body.code is not None
    assert body.code in caplog.text
    assert __file__ in caplog.text
    assert type(error).__name__ in caplog.text
    assert "secret" not in caplog.text + told.encode().decode()


def test_a_long_message_is_cut():
    assert len(refusal(ModelNotFound("x" * 100_000)).encode()) < 2000
