"""From an error's type to what its reader sees: status, body and headers.  One table; knows no route and no engine."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

import msgspec
from attrs import frozen

from strata.errors import (
    AlreadyDone,
    EngineUnavailable,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    RequestCancelled,
    SequenceFailed,
    ShuttingDown,
    StrataError,
    TryAgain,
    UnknownRequest,
    frames_of,
    new_error_id,
)

if TYPE_CHECKING:
    from werkzeug.exceptions import HTTPException

log = logging.getLogger("strata.http")

LONGEST_MESSAGE: Final = 1000
"""Characters; some messages quote what the client sent, which may be megabytes."""


class Unauthorised(StrataError):
    """No key, or one that isn't known here."""


class Forbidden(StrataError):
    """The key, the Host or the Origin may not do this."""


class UnsupportedMedia(StrataError):
    """The body's content type is not the one that this route takes."""


class UnsupportedEncoding(UnsupportedMedia):
    """The body is compressed, or coded in another way."""


class BodyTooLarge(StrataError):
    """The body is larger than the server takes."""


@frozen
class Row:
    """What one type of error looks like from outside.  `code` where the error brings none itself."""

    status: int
    type: str
    code: str | None = None


TABLE: Final[dict[type[BaseException], Row]] = {
    InvalidRequest: Row(400, "invalid_request_error"),
    ModelNotFound: Row(404, "invalid_request_error", "model_not_found"),
    Unauthorised: Row(401, "authentication_error", "invalid_api_key"),
    Forbidden: Row(403, "permission_error"),
    UnknownRequest: Row(404, "not_found_error", "unknown_request"),
    AlreadyDone: Row(409, "conflict_error", "already_done"),
    RequestCancelled: Row(409, "request_cancelled"),
    BodyTooLarge: Row(413, "invalid_request_error", "body_too_large"),
    UnsupportedMedia: Row(415, "invalid_request_error", "unsupported_media_type"),
    UnsupportedEncoding: Row(415, "invalid_request_error", "unsupported_content_encoding"),
    Overloaded: Row(429, "overloaded"),
    EngineUnavailable: Row(503, "engine_unavailable"),
    ShuttingDown: Row(503, "shutting_down"),
    TryAgain: Row(503, "try_again"),
    SequenceFailed: Row(500, "internal_error", "sequence_failed"),
    InternalError: Row(500, "internal_error"),
}
"""The nearest base class counts.  What isn't here is a bug of ours and becomes an InternalError."""

STATUS_TYPES: Final[dict[int, str]] = {
    404: "not_found_error",
    405: "method_not_allowed",
    408: "timeout_error",
    413: "invalid_request_error",
}
"""Of the framework's own refusals; the others that blame the client are `invalid_request_error`."""


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The shape of every error, in answers and in streams."""

    error: ErrorBody


@frozen
class Refusal:
    """An error as it goes out."""

    status: int
    answer: ErrorAnswer
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self) -> bytes:
        return msgspec.json.encode(self.answer)


def refusal(error: BaseException) -> Refusal:
    """How this error is told to the client.  One that is not in the table is logged, and gets an id."""
    # Here and not above: who checks only settings needs no framework.
    from werkzeug.exceptions import HTTPException

    error = leaf(error)
    if isinstance(error, HTTPException):
        return _of_framework(error)
    row = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), None)
    if row is None:
        return refusal(as_internal(error))
    code = getattr(error, "code", None) or row.code
    if isinstance(error, InternalError):
        code = error.error_id
    body = ErrorBody(str(error)[:LONGEST_MESSAGE], row.type, getattr(error, "param", None), code)
    return Refusal(row.status, ErrorAnswer(body), _headers(error))


def leaf(error: BaseException) -> BaseException:
    """The one error inside groups that hold nothing else."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def as_internal(error: BaseException) -> InternalError:
    """A bug of ours: logged where it happened and what type it was, under an id that the client gets too.

    Its message is left out, because it may quote a prompt.
    """
    error_id = new_error_id()
    log.error("%s: %s", error_id, frames_of(error))
    return InternalError(f"something went wrong here; the log has it as {error_id}", error_id=error_id)


def _headers(error: BaseException) -> tuple[tuple[str, str], ...]:
    match error:
        case TryAgain():
            return (("Retry-After", str(max(1, math.ceil(error.retry_after_s)))),)
        case Unauthorised():
            return (("WWW-Authenticate", "Bearer"),)
        case UnsupportedEncoding():
            # By which a client sees that it was not the content type (RFC 9110, 15.5.16).
            return (("Accept-Encoding", "identity"),)
        case RequestCancelled():
            # The official clients repeat a 409 by themselves; somebody wanted this one gone.
            return (("X-Should-Retry", "false"),)
        case _:
            return ()


FRAMEWORK_SAYS: Final = {405: "this path takes other methods; the header Allow names them"}
"""In the place of its own words, which are for who types addresses."""


def _of_framework(error: HTTPException) -> Refusal:
    """Quart's own 404, 405, 408, 413: same shape, its headers (`Allow`) kept."""
    status = error.code or 500
    if status == 413:
        return refusal(BodyTooLarge("the body is larger than this server takes"))
    if status >= 500:
        original = getattr(error, "original_exception", None)
        return refusal(as_internal(original or error))
    kind = STATUS_TYPES.get(status, "invalid_request_error")
    kept = tuple((k, v) for k, v in error.get_headers() if k.lower() not in ("content-type", "content-length"))
    said = FRAMEWORK_SAYS.get(status) or error.description or error.name
    return Refusal(status, ErrorAnswer(ErrorBody(said, kind, None, None)), kept)
