"""A tokenizer and a chat template without a model: a token is a byte.  Knows no file and no vocabulary.

They have the faces of `strata.models`' own, so that a runtime over a `ScriptedEngine` speaks real text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from strata.messages import ChatMessage

END: Final = 256
"""The end token: the one token that is no byte."""


class ByteTokenizer:
    """256 tokens for the bytes of UTF-8, and one for the end of an answer."""

    vocab_size = 257
    eos_ids = frozenset({END})
    hidden_ids = frozenset({END})
    longest_token = 1

    def encode(self, text: str, *, special: bool = True) -> list[int]:  # noqa: ARG002 (there are no special tokens)
        return list(text.encode())

    def token_bytes(self, token: int, /) -> bytes:
        """The token's bytes, none for the end.  Raises ValueError for a token that does not exist."""
        return b"" if token == END else bytes([token])

    def token_text(self, token: int, /) -> str:
        return self.token_bytes(token).decode(errors="replace")

    def decode(self, tokens: Sequence[int]) -> str:
        """For tests: the text of a prompt or an answer."""
        return b"".join(self.token_bytes(token) for token in tokens).decode(errors="replace")


class PlainTemplate:
    """A line for each message, `role: content`, and the answer's own line begun."""

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True) -> str:
        lines = [f"{message.role}: {message.content}\n" for message in messages]
        return "".join(lines) + ("assistant: " if add_generation_prompt else "")
