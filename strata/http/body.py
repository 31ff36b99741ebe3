"""From a body's bytes to its typed value, or to the one sentence that says which field is at fault.

What a body may cost is decided before it is decoded: depth and the number of values are counted on the raw bytes, with
a few passes that each run at the speed of memory.  Knows no route and no field.
"""

from __future__ import annotations

import re
from typing import Final, Generic, TypeVar

import msgspec
import trio

from strata.errors import InvalidRequest

T = TypeVar("T")

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 32_768
"""Eight for each message of the longest chat.  So many of the dearest kind take 20 ms to decode."""
OFF_LOOP_BYTES: Final = 64 * 1024
"""Smaller bodies decode in less time than a thread takes to wake."""

BLOCK_BYTES: Final = 256 * 1024

_KEPT: Final = b'[]{},"'
_DROPPED: Final = bytes(set(range(256)) - set(_KEPT))
_OPENING: Final = b"[{"
_CLOSING: Final = b"]}"

_AT: Final = re.compile(r" - at (?:`(?:key|value)` in )?`\$\.?(?P<path>[^`]*)`$")
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>.+)`$", re.DOTALL)
_WRONG_CHOICE: Final = re.compile(r"Invalid enum value '(?P<chosen>.*)'$", re.DOTALL)
_PART: Final = re.compile(r".*\.content\[[0-9]+\]\.type")
_QUOTED_LIMIT: Final = 200


class BodyDecoder(Generic[T]):
    """Decodes one type.  Raises InvalidRequest, which names the field as the client wrote it: `messages[2].content`."""

    def __init__(self, kind: type[T], threads: trio.CapacityLimiter) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._threads = threads

    async def decode(self, body: bytes) -> T:
        """The value; a large body is decoded on a thread."""
        if len(body) <= OFF_LOOP_BYTES:
            await trio.lowlevel.checkpoint()
            return self.decode_now(body)
        return await trio.to_thread.run_sync(self.decode_now, body, limiter=self._threads, abandon_on_cancel=True)

    def decode_now(self, body: bytes) -> T:
        check_shape(body)
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise translate(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"the body is not valid JSON: {str(error)[:_QUOTED_LIMIT]}") from None


def check_shape(body: bytes) -> None:
    """Refuse what is nested too deeply or holds too many values.  Valid JSON is counted exactly; of anything else it
    is enough that it stays cheap."""
    bare = without_escapes(body) if b"\\" in body else body
    marks = bare.translate(None, _DROPPED)
    # A value brings at most two strings: its name and itself.
    if marks.count(b'"') > 4 * MAX_VALUES:
        raise _too_many()
    outside = b"".join(marks.split(b'"')[::2])
    if outside.count(b",") + outside.count(b"[") + outside.count(b"{") > MAX_VALUES:
        raise _too_many()
    if _deeper(outside, MAX_DEPTH):
        raise InvalidRequest(f"the body is nested more than {MAX_DEPTH} levels deep", code="body_too_deep")


def without_escapes(body: bytes) -> bytes:
    """Without those that matter here: `\\\\` and `\\"`.

    Block by block, because each call keeps the interpreter's lock.
    """
    parts: list[bytes] = []
    start = 0
    while start < len(body):
        block = body[start : start + BLOCK_BYTES]
        # An odd backslash at the end belongs to the character after it.
        if (len(block) - len(block.rstrip(b"\\"))) % 2:
            block = body[start : start + BLOCK_BYTES + 1]
        parts.append(block.replace(b"\\\\", b"").replace(b'\\"', b""))
        start += len(block)
    return b"".join(parts)


def translate(text: str) -> InvalidRequest:
    """msgspec's sentence as ours: the path goes to `param`, in the client's own notation."""
    param: str | None = None
    if found := _AT.search(text):
        # `[...]` is a value of a mapping, whose key msgspec doesn't tell.
        param, text = found["path"].replace("[...]", "") or None, text[: found.start()]
    if found := _MISSING.fullmatch(text):
        param = _below(param, found["name"])
        text = f"`{param}` is missing"
    elif found := _UNKNOWN.fullmatch(text):
        param = _below(param, found["name"][:_QUOTED_LIMIT])
        text = f"there is no field `{param}`"
    elif (found := _WRONG_CHOICE.fullmatch(text)) and _PART.fullmatch(param or ""):
        text = f"parts of type {found['chosen'][:_QUOTED_LIMIT]!r} are not served, only 'text'"
    else:
        text = f"{text[:_QUOTED_LIMIT]} (`{param}`)" if param else text[:_QUOTED_LIMIT]
    return InvalidRequest(text, param=param)


def _below(path: str | None, name: str) -> str:
    return f"{path}.{name}" if path else name


def _deeper(marks: bytes, limit: int) -> bool:
    depth = 0
    for mark in marks:
        if mark in _OPENING:
            depth += 1
            if depth > limit:
                return True
        elif mark in _CLOSING:
            depth -= 1
    return False


def _too_many() -> InvalidRequest:
    return InvalidRequest(f"the body holds more than {MAX_VALUES} values", code="body_too_large")
