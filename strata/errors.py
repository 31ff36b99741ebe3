"""What can go wrong, one type per reader's situation.  Knows no HTTP: the status is a table at the edge."""

from __future__ import annotations

import traceback
import uuid
from typing import Final


def frames_of(error: BaseException) -> str:
    """What kind of error it is and where it came about, for a log.  Not its message, which may quote a prompt."""
    return f"{type(error).__qualname__} at\n{''.join(traceback.format_tb(error.__traceback__))}"


def new_error_id() -> str:
    """By which a line of the log and what a client was told find each other."""
    return f"err-{uuid.uuid4().hex[:16]}"


class StrataError(Exception):
    """The root of every error that Strata raises on purpose."""


class InvalidRequest(StrataError):
    """The client asked for something that can't be served as asked; the same request will fail again.

    `param` names the field at fault (`messages[2].role`), or is None where the request as a whole is.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class PromptTooLong(InvalidRequest):
    """The prompt, or the prompt and the answer asked for, is larger than what there is (tokens)."""

    def __init__(self, message: str, *, tokens: int, limit: int, param: str = "messages") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")
        self.tokens = tokens
        self.limit = limit


class ModelNotFound(InvalidRequest):
    """The request names a model that this server doesn't serve."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the model {name!r} is not served here", param="model", code="model_not_found")


class TryAgain(StrataError):
    """Not now: the same request may succeed after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(TryAgain):
    """The queue is full."""


class WaitedTooLong(TryAgain):
    """It stood in the queue for longer than the server lets anybody wait (`max_wait_s`)."""


class EngineUnavailable(TryAgain):
    """The engine died, or isn't there: the request's state is lost."""


CLOSING: Final = "the server is shutting down"
DRAINING: Final = "the server is draining: it takes no more requests, and those that have started may end"


class ShuttingDown(TryAgain):
    """The server no longer takes requests, or ended before this one did."""

    @classmethod
    def by(cls, what: str) -> ShuttingDown:
        """`drain`: it was told to take no more and stays; any other word: it ends."""
        return cls(DRAINING if what == "drain" else CLOSING)


class RequestCancelled(StrataError):
    """The request was withdrawn by somebody else than its reader; `by` says who."""

    def __init__(self, by: str) -> None:
        super().__init__(f"the request was cancelled by {by}")
        self.by = by


class SequenceFailed(StrataError):
    """The engine could not go on with this one sequence; the others are untouched."""


class DeviceFault(StrataError):
    """The device can't go on: the state of every sequence on it is lost, and its engine ends."""


class OutOfDeviceMemory(DeviceFault):
    """The device has no memory left; says how much was asked for and how much is free."""


class InternalError(StrataError):
    """A bug of ours.  `error_id` is in the log beside the traceback."""

    def __init__(self, message: str, *, error_id: str) -> None:
        super().__init__(message)
        self.error_id = error_id


class ActorGone(StrataError):
    """The actor that was asked ended, or had ended, without an answer; `actor` is its id."""

    def __init__(self, actor: str) -> None:
        super().__init__(f"the actor {actor} ended without an answer")
        self.actor = actor


class UnknownRequest(StrataError):
    """No request or actor has this id."""


class AlreadyDone(StrataError):
    """The request ended before it could be cancelled."""


class StartError(StrataError):
    """The runtime can't start; one line that says what to do.  The command line ends with exit code 2, but for
    StartFailed."""


class ConfigError(StartError):
    """A setting has a value that can't be used; `setting` is its name."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(f"{setting}: {message}")
        self.setting = setting


class ModelError(StartError):
    """The model file is missing, cut short, of an unknown kind, or too large for memory."""


class StartFailed(StartError):
    """The engine was lost before it was up, and nothing says that what was asked for is wrong: it was killed, or there
    was no memory.  Starting again may help.  The command line ends with exit code 3."""


class NoMemoryToStart(StartFailed, ModelError):
    """The system, or the device, did not give the memory that it had said was free."""


class DeviceMissing(StartError):
    """The device that was asked for isn't there, or what drives it is missing or too old; says how to get it."""


class IllegalTransition(StrataError):
    """A step that the table of states does not have: a bug of ours, named by both of its ends."""
