"""A GGUF file's tables of tokens, and the tokenizer that they make.

Knows how the kinds of tokenizers cut text; nothing of what is done with one (tokenizer.py), nor of files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import tokenizers
from attrs import field, frozen
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from strata.errors import ModelError

# Kinds of token in `tokenizer.ggml.token_type` (the format's own numbers).
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5

SENTENCEPIECE: Final = "llama"
"""The name that GGUF gives to SentencePiece's byte pair encoding with bytes to fall back on."""

_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"

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
    """`tokenizer.ggml.model`; `gpt2` is byte-level BPE, `llama` SentencePiece's."""
    pre: str
    tokens: tuple[str, ...] = field(repr=False)
    kinds: tuple[int, ...] = field(repr=False)
    merges: tuple[str, ...] = field(repr=False)
    scores: tuple[float, ...] = field(repr=False, default=())
    """SentencePiece has these instead of merges: of two pairs that could be merged, that of the higher goes first."""
    space_prefix: bool = False
    """Whether a text begins with a space that it doesn't have."""

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
    built = (_pieces if vocabulary.model == SENTENCEPIECE else _byte_level)(vocabulary, ids)
    built.add_special_tokens(_added(vocabulary, _CONTROL, _UNKNOWN))
    built.add_tokens(_added(vocabulary, _USER_DEFINED))
    return built.to_str()


def _byte_level(vocabulary: Vocabulary, ids: dict[str, int]) -> tokenizers.Tokenizer:
    try:
        built = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[_halves(merge) for merge in vocabulary.merges]))
    except Exception as error:  # The library raises plain Exception.
        raise ModelError(f"its merges do not fit its vocabulary ({error}); fetch it again") from error
    if vocabulary.pre in _COMPOSED:
        built.normalizer = normalizers.NFC()
    built.pre_tokenizer = _PRE_TOKENIZERS[vocabulary.pre]()
    built.decoder = decoders.ByteLevel()
    return built


def _pieces(vocabulary: Vocabulary, ids: dict[str, int]) -> tokenizers.Tokenizer:
    """Spaces are `▁`, and a character without a token is written as its bytes.

    https://github.com/google/sentencepiece, `bpe_model.cc`.
    """
    unknown = next((vocabulary.tokens[n] for n, kind in enumerate(vocabulary.kinds) if kind == _UNKNOWN), None)
    merges = pieces_merges(vocabulary)
    built = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    if vocabulary.space_prefix:
        spaces.insert(0, normalizers.Prepend(_SPACE))
    built.normalizer = normalizers.Sequence(spaces)
    built.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return built


def pieces_merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every way to make a piece of two, those of the highest score first; of one piece's by the ids of its halves."""
    plain = {token: n for n, token in enumerate(vocabulary.tokens) if vocabulary.kinds[n] == _NORMAL}
    ranked: list[tuple[float, int, int, int]] = []
    for token, n in plain.items():
        for at in range(1, len(token)):
            left, right = plain.get(token[:at]), plain.get(token[at:])
            if left is not None and right is not None:
                ranked.append((-vocabulary.scores[n], n, left, right))
    ranked.sort()
    return [(vocabulary.tokens[left], vocabulary.tokens[right]) for _, _, left, right in ranked]


def _refuse_unknown(vocabulary: Vocabulary) -> None:
    if vocabulary.model not in ("gpt2", SENTENCEPIECE):
        known = f"gpt2 and {SENTENCEPIECE} are"
        raise ModelError(f"the tokenizer {vocabulary.model!r} (tokenizer.ggml.model) is not supported; {known}")
    if vocabulary.model == "gpt2" and vocabulary.pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise ModelError(f"the pre-tokenizer {vocabulary.pre!r} (tokenizer.ggml.pre) is not supported; {known} are")
    if len(vocabulary.kinds) != len(vocabulary.tokens):
        raise ModelError("its vocabulary has not as many kinds as tokens; fetch it again or use another file")
    if vocabulary.model == SENTENCEPIECE and len(vocabulary.scores) != len(vocabulary.tokens):
        raise ModelError("its vocabulary has not as many scores as tokens; fetch it again or use another file")


def _halves(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _added(vocabulary: Vocabulary, *kinds: int) -> list[AddedToken]:
    chosen = (token for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if kind in kinds)
    return [AddedToken(token, special=_CONTROL in kinds, normalized=False) for token in chosen]
