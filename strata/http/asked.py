"""From a typed body to the request that the runtime knows: what fields mean together, and what isn't served yet.

Types and ranges of single fields have been checked (`schema.py`); whether it fits the model is the runtime's to say.
"""

from __future__ import annotations

import itertools
import re
from typing import Final

from attrs import frozen

from strata.errors import InvalidRequest
from strata.http.schema import ChatBody, Message
from strata.messages import PRIORITY, ChatMessage, Request

PRIORITY_HEADER: Final = "X-Request-Priority"
PRIORITIES: Final = range(PRIORITY[0], PRIORITY[1] + 1)
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,3}")


@frozen
class Asked:
    """One chat: what the runtime is asked, and how the client wants to have it told."""

    request: Request
    stream: bool
    include_usage: bool
    return_progress: bool
    max_priority: int
    """The highest that its key may ask for."""


def asked(body: ChatBody, *, request_id: str, priority: int | None, max_priority: int) -> Asked:
    """`priority` comes from the header, and counts where the body names none.  Raises InvalidRequest."""
    _refuse_unserved(body)
    options = body.stream_options
    return Asked(
        request=_request(body, request_id, _priority(body, priority, max_priority)),
        stream=bool(body.stream),
        include_usage=bool(options and options.include_usage),
        return_progress=bool(body.return_progress),
        max_priority=max_priority,
    )


def header_priority(text: str | None) -> int | None:
    """The header's value.  Raises InvalidRequest."""
    if text is None:
        return None
    if not _WHOLE.fullmatch(text.strip()) or int(text) not in PRIORITIES:
        raise InvalidRequest(f"{PRIORITY_HEADER} is not a whole number from -100 to 100", param=PRIORITY_HEADER)
    return int(text)


def _request(body: ChatBody, request_id: str, priority: int | None) -> Request:
    max_tokens = _whole(body.max_completion_tokens or body.max_tokens)
    min_tokens = _whole(body.min_tokens) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequest(f"min_tokens is {min_tokens}, max_tokens only {max_tokens}", param="min_tokens")
    return Request(
        messages=tuple(_message(message, index) for index, message in enumerate(body.messages)),
        model=body.model,
        max_tokens=max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=None if body.top_k is None else max(int(body.top_k), 0),
        min_p=body.min_p,
        seed=_whole(body.seed),
        stop=_stops(body),
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=tuple((body.logit_bias or {}).items()),
        logprobs=_logprobs(body),
        ignore_eos=bool(body.ignore_eos),
        min_tokens=min_tokens,
        cache_prompt=body.cache_prompt is not False,
        priority=priority,
        id=request_id,
    )


def _whole(number: float | None) -> int | None:
    """A number without a fraction, however it was written."""
    return None if number is None else int(number)


def _message(message: Message, index: int) -> ChatMessage:
    if message.tool_calls:
        raise InvalidRequest("tools are not served yet", param=f"messages[{index}].tool_calls")
    content = message.content
    if content is None:
        raise InvalidRequest(f"`messages[{index}].content` is missing", param=f"messages[{index}].content")
    text = content if isinstance(content, str) else "\n".join(part.text for part in content)
    return ChatMessage(role=message.role, content=text, name=message.name)


def _stops(body: ChatBody) -> tuple[str, ...]:
    stop = body.stop
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return _whole(body.top_logprobs) or 0
    if body.top_logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None


def _priority(body: ChatBody, from_header: int | None, limit: int) -> int | None:
    """Raises InvalidRequest above the limit: a client that counts on being first should hear that it isn't."""
    named = from_header if body.priority is None else int(body.priority)
    if named is not None and named > limit:
        where = PRIORITY_HEADER if body.priority is None else "priority"
        raise InvalidRequest(f"this key may ask for a priority of at most {limit}", param=where)
    return named


def _refuse_unserved(body: ChatBody) -> None:
    unserved = {
        "tools": bool(body.tools),
        "tool_choice": body.tool_choice not in (None, "none"),
        "response_format": body.response_format is not None and body.response_format.type != "text",
        "n": body.n not in (None, 1),
    }
    for name in itertools.compress(unserved, unserved.values()):
        raise InvalidRequest(f"{name} is not served yet", param=name)
