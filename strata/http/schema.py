"""What a client may send, as types: names, types, ranges and counts.  The decoder and the OpenAPI document follow from
these alone.  Doesn't know what becomes of it (`asked.py`).

Field by field as OpenAI's API has them; what is ours is marked so.  Unknown fields are ignored by these types, and
refused by their strict twins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

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
    Role,
)

ResponseFormatKind = Literal["text", "json_object", "json_schema"]

_WHOLE: Final = Meta(multiple_of=1)
_COUNT: Final = Meta(ge=0, le=MAX_TOKENS)
_TOKENS: Final = Meta(ge=1, le=MAX_TOKENS)
_TOP_K: Final = Meta(ge=-1, le=MAX_TOKENS)
_TOP_LOGPROBS: Final = Meta(ge=LOGPROBS[0], le=LOGPROBS[1])
_N: Final = Meta(ge=1, le=128)
_PRIORITY: Final = Meta(ge=PRIORITY[0], le=PRIORITY[1])
_LARGEST_WHOLE: Final = 2.0**63 - 1024
"""The largest float that a seed may be."""

Name = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
# JSON has numbers only, and 1.0 is a whole one (JSON Schema says so too).
Count = Annotated[int, _COUNT] | Annotated[float, _COUNT, _WHOLE]
Tokens = Annotated[int, _TOKENS] | Annotated[float, _TOKENS, _WHOLE]
TopK = Annotated[int, _TOP_K] | Annotated[float, _TOP_K, _WHOLE]
TopLogprobs = Annotated[int, _TOP_LOGPROBS] | Annotated[float, _TOP_LOGPROBS, _WHOLE]
Choices = Annotated[int, _N] | Annotated[float, _N, _WHOLE]
Priority = Annotated[int, _PRIORITY] | Annotated[float, _PRIORITY, _WHOLE]
Seed = Annotated[int, Meta(ge=SEED[0], le=SEED[1])] | Annotated[float, Meta(ge=SEED[0], le=_LARGEST_WHOLE), _WHOLE]
Unit = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=PENALTY[0], le=PENALTY[1])]
TokenName = Annotated[int, Meta(ge=0, le=9_999_999_999)]
"""As many digits as the document can tell; which tokens there are is the model's to say."""
TokenNames: Final = {"propertyNames": {"pattern": "^(-?0|[1-9][0-9]{0,9})$"}}
"""A JSON object's keys are strings; that these are token ids is not told by their type."""
Biases = Annotated[
    dict[TokenName, Annotated[float, Meta(ge=BIAS[0], le=BIAS[1])]],
    Meta(max_length=MAX_BIASES, extra_json_schema=TokenNames),
]


CACHED: Final = "False: the whole prompt is read, and none of it is kept for others that begin alike."


class TextPart(Struct, frozen=True):
    # Not a tag of the struct: where there is only one kind, a tag may be left out.
    type: Literal["text"]
    text: str


class Message(Struct, frozen=True):
    """One turn.  Text parts are joined; parts of other kinds are not served yet."""

    role: Role
    content: str | Annotated[Sequence[TextPart], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    """May be left out only beside `tool_calls`."""
    name: Name | None = None
    tool_calls: list[Any] | None = None
    """Not served yet: refused unless empty."""
    tool_call_id: Name | None = None


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None


class ResponseFormat(Struct, frozen=True):
    """Only `text` is served yet."""

    type: ResponseFormatKind


class ChatBody(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`.  None stands for "not named"."""

    messages: Annotated[Sequence[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: Name = "default"
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    """Wins over `max_tokens`."""
    temperature: Annotated[float, Meta(ge=TEMPERATURE[0], le=TEMPERATURE[1])] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: TopK | None = None
    """0 and -1 keep all."""
    min_p: Unit | None = None
    seed: Seed | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=REPETITION[0], le=REPETITION[1])] | None = None
    logit_bias: Biases | None = None
    n: Choices | None = None
    """Only 1 is served yet."""
    user: Name | None = None
    tools: list[Any] | None = None
    """Not served yet: refused unless empty."""
    tool_choice: Any = None
    """Not served yet: refused unless `none`."""
    response_format: ResponseFormat | None = None
    # Ours from here on.
    priority: Priority | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    return_progress: bool | None = None
    cache_prompt: Annotated[bool, Meta(description=CACHED)] | None = None


class StrictTextPart(TextPart, frozen=True, forbid_unknown_fields=True):
    pass


class StrictMessage(Message, frozen=True, forbid_unknown_fields=True):
    content: str | Annotated[Sequence[StrictTextPart], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None


class StrictStreamOptions(StreamOptions, frozen=True, forbid_unknown_fields=True):
    pass


class StrictChatBody(ChatBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, where a field that isn't named here is refused."""

    messages: Annotated[Sequence[StrictMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    stream_options: StrictStreamOptions | None = None
