"""What a prompt begins with, page by page, as names that can be compared.  Pure; knows no page and no request.

A page's name is a hash of its own tokens and of the name before it, so equal names mean equal tokens from the prompt's
begin to the page's end: what was computed of them is the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

BYTES: Final = 16
"""Of a name: no two of 2^60 different beginnings are likely to share one, whoever makes them up."""


def chain(tokens: Sequence[int], page_tokens: int) -> tuple[bytes, ...]:
    """A name for each page that the tokens fill, in order.  Raises OverflowError for what is no id of a token."""
    names, name = [], b""
    for end in range(page_tokens, len(tokens) + 1, page_tokens):
        page = array("I", tokens[end - page_tokens : end]).tobytes()
        name = blake2b(name + page, digest_size=BYTES).digest()
        names.append(name)
    return tuple(names)
