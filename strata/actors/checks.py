"""What a request may ask for: the type and the range of each field, one by one.  Knows no prompt and no token's text.

The ranges themselves are in `messages`, where the edge takes them from too.  A program that embeds the runtime hands in
what it likes, so nothing here trusts a type: whatever comes, the answer is InvalidRequest and names the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeGuard, get_args

import attrs

from strata.config import RequestSettings
from strata.errors import InvalidRequest, ModelNotFound
from strata.messages import (
    BIAS,
    LOGPROBS,
    MAX_BIASES,
    MAX_MESSAGES,
    MAX_NAME_CHARACTERS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    MAX_TOKENS,
    PENALTY,
    PRIORITY,
    REPETITION,
    SEED,
    TEMPERATURE,
    ChatMessage,
    Request,
    Role,
)

ROLES: Final = get_args(Role)
NUMBERS: Final = {
    "temperature": TEMPERATURE,
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": PENALTY,
    "presence_penalty": PENALTY,
    "repetition_penalty": REPETITION,
}
WHOLE: Final = {
    "top_k": (0, MAX_TOKENS),
    "seed": SEED,
    "logprobs": LOGPROBS,
    "max_tokens": (1, MAX_TOKENS),
    "min_tokens": (0, MAX_TOKENS),
    "priority": PRIORITY,
}
UNNAMED: Final = frozenset(field.name for field in attrs.fields(Request) if field.default is None)
"""Where None is no value but "not named"."""
LONGEST_SHOWN: Final = 40
"""Characters of a value that are repeated to who sent it."""


def check_messages(messages: object) -> None:
    """That it is a chat, as far as its size can be asked for; cheap.  Raises InvalidRequest."""
    if not isinstance(messages, tuple | list):
        raise InvalidRequest(f"messages are a list, not {_shown(messages)}", param="messages")
    if not 1 <= len(messages) <= MAX_MESSAGES:
        text = f"there must be at least one message and at most {MAX_MESSAGES}; there are {len(messages)}"
        raise InvalidRequest(text, param="messages")
    for n, message in enumerate(messages):
        if not isinstance(message, ChatMessage):
            raise InvalidRequest(f"a message is not {_shown(message)}", param=f"messages[{n}]")
        _check_message(message, f"messages[{n}]")


def check_request(request: Request, settings: RequestSettings, *, names: frozenset[str], vocab_size: int) -> None:
    """Everything that can be said without the prompt.  Raises InvalidRequest and ModelNotFound."""
    _string("model", request.model, MAX_NAME_CHARACTERS)
    if request.model not in names:
        raise ModelNotFound(request.model)
    check_messages(request.messages)
    _check_text(request.messages)
    if request.id is not None:
        _string("id", request.id)
    _check_stop(request.stop)
    _check_numbers(request)
    _check_priority(request.priority, settings.max_priority)
    _check_bias(request.logit_bias, vocab_size)
    for name in ("ignore_eos", "cache_prompt"):
        if not isinstance(value := getattr(request, name), bool):
            raise InvalidRequest(f"{name} {_shown(value)} is neither true nor false", param=name)


def _check_message(message: ChatMessage, where: str) -> None:
    if message.role not in ROLES:
        text = f"role {_shown(message.role)} is not one of {', '.join(ROLES)}"
        raise InvalidRequest(text, param=f"{where}.role")
    _string(f"{where}.content", message.content)
    if message.name is not None:
        _string(f"{where}.name", message.name, MAX_NAME_CHARACTERS)


def _check_text(messages: Sequence[ChatMessage]) -> None:
    for n, message in enumerate(messages):
        _sound(f"messages[{n}].content", message.content)
        _sound(f"messages[{n}].name", message.name or "")


def _check_stop(stop: object) -> None:
    if not isinstance(stop, tuple | list):
        raise InvalidRequest(f"stop is a list of strings, not {_shown(stop)}", param="stop")
    if len(stop) > MAX_STOPS:
        raise InvalidRequest(f"there are {len(stop)} stop strings; at most {MAX_STOPS} may be", param="stop")
    for string in stop:
        _string("stop", string, MAX_STOP_CHARACTERS)
        _sound("stop", string)
        if not string:
            raise InvalidRequest("a stop string can't be empty", param="stop")


def _check_numbers(request: Request) -> None:
    for field, (low, high) in NUMBERS.items():
        if _is_named(request, field):
            _number(field, getattr(request, field), low, high)
    for field, (lowest, highest) in WHOLE.items():
        if _is_named(request, field):
            _whole(field, getattr(request, field), lowest, highest)
    if request.top_p == 0:
        raise InvalidRequest("top_p must be more than 0", param="top_p")
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        text = f"min_tokens {request.min_tokens} is more than max_tokens {request.max_tokens}"
        raise InvalidRequest(text, param="min_tokens")


def _check_priority(priority: int | None, highest: int) -> None:
    if priority is not None and priority > highest:
        raise InvalidRequest(f"priority {priority} is higher than this server allows ({highest})", param="priority")


def _is_named(request: Request, field: str) -> bool:
    """None stands for "not named" where that is the default, and is a wrong value elsewhere."""
    return field not in UNNAMED or getattr(request, field) is not None


def _check_bias(bias: object, vocab_size: int) -> None:
    if not isinstance(bias, tuple | list) or len(bias) > MAX_BIASES:
        raise InvalidRequest(f"logit_bias holds at most {MAX_BIASES} tokens, each with its bias", param="logit_bias")
    for pair in bias:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidRequest(f"{_shown(pair)} is not a token and its bias", param="logit_bias")
        token, value = pair
        if not _is_whole(token) or not 0 <= token < vocab_size:
            text = f"there is no token {_shown(token)}; the vocabulary has {vocab_size}"
            raise InvalidRequest(text, param="logit_bias")
        _number("logit_bias", value, *BIAS)


# -- one value --------------------------------------------------------------------------------------------------------


def _number(field: str, value: object, low: float, high: float) -> None:
    """A finite number between the two."""
    if not _is_number(value) or not low <= value <= high:
        text = f"{field} {_shown(value)} must be a finite number, at least {low:g} and at most {high:g}"
        raise InvalidRequest(text, param=field)


def _whole(field: str, value: object, low: int, high: int) -> None:
    if not _is_whole(value) or not low <= value <= high:
        text = f"{field} {_shown(value)} must be a whole number, at least {low} and at most {high}"
        raise InvalidRequest(text, param=field)


def _string(field: str, value: object, longest: int | None = None) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be a string, not {_shown(value)}", param=field)
    if longest is not None and len(value) > longest:
        raise InvalidRequest(f"{field} has {len(value)} characters; at most {longest} may be", param=field)


def _sound(field: str, text: str) -> None:
    """Half of a surrogate pair is no text, and no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field} is not valid Unicode", param=field) from None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """A short value as it is; of a long one what it is.  A huge number can't even be written out."""
    if isinstance(value, int) and not -(2**64) <= value <= 2**64:
        return f"of {value.bit_length()} bits"
    if (value is None or isinstance(value, int | float | str)) and len(shown := repr(value)) <= LONGEST_SHOWN:
        return shown
    return f"of type {type(value).__name__}"
