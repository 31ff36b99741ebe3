"""Text to tokens and back.

The `tokenizers` library does the work; this room says what the exact bytes of a token are.  Knows how vocabularies
spell bytes; nothing of where they come from (vocabulary.py), chats, templates or models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Final

import tokenizers

from strata.errors import InvalidRequest, ModelError


class Tokenizer:
    """A vocabulary at work.  Immutable, and safe to use from several threads."""

    def __init__(
        self,
        text: str,
        *,
        special: frozenset[int],
        eos_ids: frozenset[int] = frozenset(),
        bos_id: int | None = None,
        add_bos: bool = False,
        vocab_size: int = 0,
        byte_fallback: bool = False,
    ) -> None:
        """`text` is a `tokenizer.json`; `special` are the tokens whose text is their own.  Raises ModelError.

        `vocab_size`: what the model may choose from, where that is more than the tokens there are: the rest is padding
        and means nothing.  `byte_fallback`: whether tokens are written as SentencePiece does (`▁the`, `<0x0A>`).
        """
        self._json = text
        self._tokenizer = _load(text)
        self._special = special
        self._bos = bos_id if add_bos else None
        self.eos_ids: Final = eos_ids
        """Tokens that end an answer; a stream hides them."""
        self.hidden_ids: Final = eos_ids | frozenset(_control_ids(self._tokenizer))
        """Tokens that are no text of an answer (ends of turns and the like); a stream hides them."""
        self._spelt: Final = _byte_fallback if byte_fallback else _byte_level
        self.vocab_size: Final[int] = max(vocab_size, self._tokenizer.get_vocab_size())

    def __repr__(self) -> str:
        return f"<Tokenizer {self.vocab_size} tokens, {len(self._special)} special>"

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of `text`.

        With `special`, as for a rendered chat, the text of a special token (`<|im_end|>`) becomes that token wherever
        it stands, in a user's message too: whoever writes a message can end it and begin another, as with other
        servers.  A chat is no border of trust.  A start token goes first where the model wants one and the text has
        none.  Without `special` all is plain text.

        Bytes for which the vocabulary has no token are left out (of SmolLM2's, a few control characters).  Raises
        InvalidRequest for a string that is no Unicode text (lone surrogates).
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("the text has half a character (a lone surrogate)", param="messages") from None
        tokenizer = self._tokenizer if special else self._plain
        # A batch of one: unlike the plain call it lets other threads run meanwhile (a megabyte takes half a second).
        ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if special and self._bos is not None and ids[:1] != [self._bos]:
            ids.insert(0, self._bos)
        return ids

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes that the token stands for; they need not be whole characters.

        A special token gives its own text.  Raises IndexError for an id outside the vocabulary.
        """
        text = self.token_text(token)
        return text.encode() if token in self._special else self._spelt(text)

    def token_text(self, token: int) -> str:
        """The token as the vocabulary writes it (`Ġthe`); nothing for padding.  Raises IndexError."""
        text: str | None = self._tokenizer.id_to_token(token) if token >= 0 else None
        if text is None:
            if 0 <= token < self.vocab_size:
                return ""
            raise IndexError(f"token {token} is outside the vocabulary (0-{self.vocab_size - 1})")
        return text

    @cached_property
    def longest_token(self) -> int:
        """Bytes of text that one token stands for at most (SmolLM2: 81).  A tenth of a second when first asked for."""
        return max(len(self.token_bytes(token)) for token in range(self.vocab_size))

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        # Recognising special tokens is a switch of the whole object; to turn it there and back would not be safe.
        plain = _load(self._json)
        plain.encode_special_tokens = True
        return plain


def _load(text: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # The library raises plain Exception.
        raise ModelError(f"its tokenizer cannot be built ({error}); fetch the file again") from error


def _byte_level(token: str) -> bytes:
    try:
        return bytes(map(_BYTES.__getitem__, token))
    except KeyError:
        # Not made of stand-ins for bytes: no merge can make it, so it is text of its own.
        return token.encode()


def _byte_fallback(token: str) -> bytes:
    """As SentencePiece writes: characters, `▁` for a space, and `<0x0A>` for a byte that is no character's."""
    byte = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


def _control_ids(tokenizer: tokenizers.Tokenizer) -> Iterator[int]:
    return (n for n, added in tokenizer.get_added_tokens_decoder().items() if added.special)


def _byte_characters() -> dict[str, int]:
    """Printable stand-in -> byte, as byte-level BPE writes its tokens.

    Bytes that print stand for themselves, the others follow from U+0100 on (GPT-2, `encoder.py`, `bytes_to_unicode`).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTES: Final = _byte_characters()
