"""What a client may send, as types: names, types, ranges and counts.  The decoder and the OpenAPI document follow from
these alone.  Doesn't know what becomes of it (`asked.py`).

Field by field as OpenAI's API has them; what is ours is marked so.  Unknown fields are ignored by these types, and
refused by their strict twins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

MAX_MESSAGES: Final = 4096
MAX_STOPS: Final = 16

Role = Literal["system", "developer", "user", "assistant", "tool"]
ResponseFormatKind = Literal["text", "json_object", "json_schema"]

Name = Annotated[str, Meta(max_length=256)]
Stop = Annotated[str, Meta(min_length=1, max_length=1024)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Unit = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Biases = Annotated[dict[Count, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=4096)]


class TextPart(Struct, frozen=True):
    # Not a tag of the struct: where there is only one kind, a tag may be left out.
    type: Literal["text"]
    text: str


class Message(Struct, frozen=True):
    """One turn.  Text parts are joined; parts of other kinds are not served yet."""

    role: Role
    content: str | Annotated[Sequence[TextPart], Meta(min_length=1, max_length=MAX_MESSAGES)]
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
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """0 and -1 keep all."""
    min_p: Unit | None = None
    seed: Seed | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    logit_bias: Biases | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    """Only 1 is served yet."""
    user: Name | None = None
    tools: list[Any] | None = None
    """Not served yet: refused unless empty."""
    tool_choice: Any = None
    """Not served yet: refused unless `none`."""
    response_format: ResponseFormat | None = None
    # Ours from here on.
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    return_progress: bool | None = None
    cache_prompt: bool | None = None


class StrictTextPart(TextPart, frozen=True, forbid_unknown_fields=True):
    pass


class StrictMessage(Message, frozen=True, forbid_unknown_fields=True):
    content: str | Annotated[Sequence[StrictTextPart], Meta(min_length=1, max_length=MAX_MESSAGES)]


class StrictStreamOptions(StreamOptions, frozen=True, forbid_unknown_fields=True):
    pass


class StrictChatBody(ChatBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same, where a field that isn't named here is refused."""

    messages: Annotated[Sequence[StrictMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    stream_options: StrictStreamOptions | None = None
