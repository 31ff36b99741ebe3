"""Text to tokens and back, by the file's own vocabulary and merges.

The `tokenizers` library does the work; this room says how a GGUF file's tables make one, and what the exact bytes of a
token are.  Knows how vocabularies spell bytes; nothing of chats, templates or models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Final

import tokenizers
from attrs import field, frozen
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from strata.errors import InvalidRequest, ModelError

# Kinds of token in `tokenizer.ggml.token_type` (the format's own numbers).
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5

_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What Llama 3 and Qwen take for a word; they differ in how many digits make one."""


def _words(digits: str) -> pre_tokenizers.PreTokenizer:
    pattern = tokenizers.Regex(_WORDS.replace("DIGITS", digits))
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_PRE_TOKENIZERS: Final[Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]]] = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    # Every digit is a word of its own, and a space before it too.
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": lambda: _words("{1,3}"),
    "qwen2": lambda: _words(""),
}
"""How text is cut into words before the merges, by the name in `tokenizer.ggml.pre`."""


_COMPOSED: Final = frozenset({"qwen2"})
"""Those that see accents as one with their letters, wherever that can be written."""


@frozen
class Vocabulary:
    """The tables of a GGUF file that make its tokenizer, as they stand there."""

    model: str
    """`tokenizer.ggml.model`; `gpt2` is byte-level BPE."""
    pre: str
    tokens: tuple[str, ...] = field(repr=False)
    kinds: tuple[int, ...] = field(repr=False)
    merges: tuple[str, ...] = field(repr=False)

    @property
    def special(self) -> frozenset[int]:
        """Tokens that are never made by merges: their text is their own and no stand-in for bytes."""
        return frozenset(n for n, kind in enumerate(self.kinds) if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED))


def tokenizer_json(vocabulary: Vocabulary) -> str:
    """The vocabulary as a `tokenizer.json`.  Raises ModelError for a kind of tokenizer that isn't supported."""
    _refuse_unknown(vocabulary)
    ids = {token: n for n, token in enumerate(vocabulary.tokens)}
    if len(ids) != len(vocabulary.tokens):
        raise ModelError("its vocabulary has the same token twice; fetch it again or use another file")
    try:
        built = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[_halves(merge) for merge in vocabulary.merges]))
    except Exception as error:  # The library raises plain Exception.
        raise ModelError(f"its merges do not fit its vocabulary ({error}); fetch it again") from error
    if vocabulary.pre in _COMPOSED:
        built.normalizer = normalizers.NFC()
    built.pre_tokenizer = _PRE_TOKENIZERS[vocabulary.pre]()
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens(_added(vocabulary, _CONTROL, _UNKNOWN))
    built.add_tokens(_added(vocabulary, _USER_DEFINED))
    return built.to_str()


def _refuse_unknown(vocabulary: Vocabulary) -> None:
    if vocabulary.model != "gpt2":
        raise ModelError(f"the tokenizer {vocabulary.model!r} (tokenizer.ggml.model) is not supported; gpt2 is")
    if vocabulary.pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise ModelError(f"the pre-tokenizer {vocabulary.pre!r} (tokenizer.ggml.pre) is not supported; {known} are")
    if len(vocabulary.kinds) != len(vocabulary.tokens):
        raise ModelError("its vocabulary has not as many kinds as tokens; fetch it again or use another file")


def _halves(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _added(vocabulary: Vocabulary, *kinds: int) -> list[AddedToken]:
    chosen = (token for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if kind in kinds)
    return [AddedToken(token, special=_CONTROL in kinds, normalized=False) for token in chosen]


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
