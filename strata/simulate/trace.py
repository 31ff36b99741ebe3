"""Traffic in a file: who asked for how much, and when.  Knows lines of JSON; no engine and no policy.

The format is that of the Mooncake traces (https://github.com/kvcache-ai/Mooncake, FAST'25 release): one object a line
with `timestamp` (milliseconds), `input_length`, `output_length` (tokens) and `hash_ids` (of blocks of the prompt).
`priority` is ours.  Other names are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Final

import msgspec

from strata.errors import ConfigError
from strata.scheduling.prefix import BYTES

BLOCK_TOKENS: Final = 512
"""Of the prompt, for each of the Mooncake traces' hash ids."""

LATEST_MS: Final = 4e12
"""A clock's milliseconds since 1970 come to that in 2096.  Far later, floats don't hold whole ticks of time."""

_Tokens = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class TraceRequest(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One request of a trace."""

    timestamp: Annotated[float, msgspec.Meta(ge=0, le=LATEST_MS)]
    """When it came, in milliseconds from the trace's begin."""
    input_length: _Tokens
    output_length: _Tokens
    """What it writes; it asks for no more."""
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    hash_ids: tuple[int, ...] = ()
    """One for each BLOCK_TOKENS of the prompt, the last one perhaps of fewer: equal up to one, equal up to its end."""

    def prefix(self, page_tokens: int) -> tuple[bytes, ...]:
        """A name for each page that the prompt fills, as far as its hash ids say what is in it."""
        if not self.hash_ids:
            return ()
        names, name = [], b""
        for number in self.hash_ids:
            name = blake2b(name + b"%d," % number, digest_size=BYTES).digest()
            names.append(name)
        covered = min(self.input_length, BLOCK_TOKENS * len(names))
        # A page is known by the block that its last token stands in, and by where it ends.
        ends = range(page_tokens, covered + 1, page_tokens)
        return tuple(names[(end - 1) // BLOCK_TOKENS] + end.to_bytes(4, "big") for end in ends)


def read_trace(path: Path) -> list[TraceRequest]:
    """The requests of a file, in order of time.  Raises ConfigError, which names the line."""
    try:
        with path.open("rb") as lines:
            requests = list(_parse(lines, path))
    except OSError as problem:
        raise ConfigError("trace", f"{path} can't be read ({problem.strerror or problem})") from None
    if not requests:
        raise ConfigError("trace", f"{path} has no request")
    return sorted(requests, key=lambda request: request.timestamp)


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """Raises ConfigError if the file can't be written."""
    encode = msgspec.json.Encoder().encode
    try:
        with path.open("wb") as out:
            out.writelines(encode(_whole(request)) + b"\n" for request in requests)
    except OSError as problem:
        raise ConfigError("write", f"{path} can't be written ({problem.strerror or problem})") from None


def _parse(lines: Iterable[bytes], path: Path) -> Iterator[TraceRequest]:
    decode = msgspec.json.Decoder(TraceRequest).decode
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            request = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            raise ConfigError("trace", f"line {number} of {path}: {problem}") from None
        if not math.isfinite(request.timestamp):
            raise ConfigError("trace", f"line {number} of {path}: the timestamp is not finite")
        yield request


def _whole(request: TraceRequest) -> dict[str, object]:
    """As an object of JSON; whole milliseconds without a point, as other tools write them."""
    line = msgspec.to_builtins(request)
    assert isinstance(line, dict)
    if request.timestamp.is_integer():
        line["timestamp"] = int(request.timestamp)
    return line
