"""A GGUF file's metadata, read once by the `gguf` library and turned into an index.

A room of its own because it is slow, rarely needed and must doubt every number that it reads: the file comes from
somebody else.  Knows the format's names (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md); computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import GGUFEndian, GGUFReader, ReaderTensor
from numpy.typing import DTypeLike, NDArray

from strata.errors import ModelError
from strata.models.config import KINDS, ModelConfig
from strata.models.families import family_of
from strata.models.family import Family
from strata.models.gguf_fields import Fields, contents, one_line
from strata.models.index import Index, TensorEntry, sha256_of
from strata.models.layout import refuse_more_layers_than_tensors
from strata.models.vocabulary import SENTENCEPIECE, Vocabulary, tokenizer_json

_VARIANTS: Final[Mapping[str, str]] = {
    "expert_count": "mixture of experts",
}
"""Keys that change the arithmetic; one that says something refuses the file rather than give wrong text."""

_FACTORS: Final = "rope_freqs.weight"
"""A tensor of constants: what each pair's speed of rotation is divided by."""


def read_gguf(path: Path) -> Index:
    """What the file says, checked; seconds for a large vocabulary.

    Raises ModelError for what is not GGUF, is cut short, contradicts itself, or is of a kind that isn't supported.
    """
    stat = path.stat()
    reader = _open(path)
    fields = Fields(reader.fields)
    family = family_of(fields.text("general.architecture"))
    tensors = _entries([tensor for tensor in reader.tensors if tensor.name != _FACTORS])
    vocabulary = _vocabulary(fields)
    return Index(
        sha256=sha256_of(path),
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        config=_config(fields, family, vocabulary, tensors, _rope_factors(reader.tensors)),
        tensors=tensors,
        tokenizer_json=tokenizer_json(vocabulary),
        special=vocabulary.special,
        byte_fallback=vocabulary.model == SENTENCEPIECE,
        chat_template=_chat_template(fields),
        bos_text=_token_text(fields, vocabulary, "bos"),
        eos_text=_token_text(fields, vocabulary, "eos"),
    )


class _Reader(GGUFReader):
    """The library takes what lies beyond the end of the file for empty, and would walk a wrong length for ever."""

    def _get(self, offset: int, dtype: DTypeLike, count: int = 1, override_order: Any = None) -> NDArray[Any]:
        wanted = int(count) * np.dtype(dtype).itemsize
        if offset + wanted > len(self.data):
            raise _CutShort(offset + wanted)
        return super()._get(offset, dtype, count, override_order)


class _CutShort(Exception):
    """The file ends before byte `end`, which it says it has."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


def _open(path: Path) -> _Reader:
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        begins = f"begins with {magic!r}" if magic else "is empty"
        raise ModelError(f"it is not a GGUF file (it {begins}); name a GGUF file or run `strata pull`")
    try:
        # Sizes that wrap around are an error too, not a warning.
        with np.errstate(all="raise"):
            reader = _Reader(path)
    except _CutShort as cut:
        raise ModelError(f"it is cut short: {size} bytes, and {cut.end} are needed; fetch it again") from None
    except MemoryError:
        raise
    except Exception as error:  # The library does not say what it raises for a damaged file: anything.
        raise ModelError(f"its metadata is damaged ({one_line(error)}); fetch it again") from error
    if reader.endianess != GGUFEndian.LITTLE:
        raise ModelError("it is a big-endian GGUF file, which is not supported; use a little-endian one")
    return reader


def _entries(tensors: list[ReaderTensor]) -> tuple[TensorEntry, ...]:
    unknown = sorted({tensor.tensor_type.name for tensor in tensors} - set(KINDS))
    if unknown:
        raise ModelError(
            f"its tensors are of the kind {', '.join(unknown)}, which is not supported; use one of {', '.join(KINDS)}"
        )
    return tuple(_entry(tensor) for tensor in tensors)


def _entry(tensor: ReaderTensor) -> TensorEntry:
    return TensorEntry(
        name=tensor.name,
        kind=tensor.tensor_type.name,
        shape=tuple(int(n) for n in reversed(tensor.shape.tolist())),
        offset=int(tensor.data_offset),
    )


def _rope_factors(tensors: list[ReaderTensor]) -> tuple[float, ...]:
    """How much slower than the others each pair turns, where a tensor says so."""
    for tensor in tensors:
        if tensor.name == _FACTORS:
            if tensor.tensor_type.name != "F32":
                raise ModelError(f"its {_FACTORS} is of the kind {tensor.tensor_type.name}; use another file")
            return tuple(float(one) for one in tensor.data.reshape(-1))
    return ()


def _head_dim(fields: Fields, own: str) -> int:
    hidden, heads = fields.size(f"{own}embedding_length"), fields.size(f"{own}attention.head_count")
    return fields.size(f"{own}attention.key_length", max(1, hidden // heads))


def _rope_dim(fields: Fields, own: str) -> int:
    return fields.size(f"{own}rope.dimension_count", _head_dim(fields, own))


def _config(
    fields: Fields,
    family: Family,
    vocabulary: Vocabulary,
    tensors: tuple[TensorEntry, ...],
    rope_factors: tuple[float, ...],
) -> ModelConfig:
    own = f"{family.name}."
    _refuse_variants(fields, own)
    hidden, heads = fields.size(f"{own}embedding_length"), fields.size(f"{own}attention.head_count")
    kv_heads = fields.size(f"{own}attention.head_count_kv", heads)
    head_dim, rope_dim = _head_dim(fields, own), _rope_dim(fields, own)
    if heads % kv_heads or fields.size(f"{own}attention.value_length", head_dim) != head_dim:
        raise ModelError("its heads do not fit each other; fetch it again or use another file")
    if rope_dim % 2 or rope_dim > head_dim:
        raise ModelError(f"its {own}rope.dimension_count is {rope_dim} of {head_dim}; use another file")
    count, layers = len(vocabulary.tokens), fields.size(f"{own}block_count")
    context = fields.size(f"{own}context_length")
    refuse_more_layers_than_tensors(layers, len(tensors))
    config = ModelConfig(
        architecture=family.name,
        name=fields.text("general.name") if "general.name" in fields.fields else "",
        vocab_size=count,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=fields.size(f"{own}feed_forward_length"),
        context=context,
        rms_eps=fields.positive(f"{own}attention.layer_norm_rms_epsilon"),
        rope=fields.rope(own, rope_dim, context, rope_factors),
        rope_dim=rope_dim,
        tied=all(tensor.name != "output.weight" for tensor in tensors),
        eos_ids=_ends(fields, family, vocabulary),
        bos_id=fields.token("tokenizer.ggml.bos_token_id", count),
        add_bos=fields.flag("tokenizer.ggml.add_bos_token", vocabulary.model == SENTENCEPIECE),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        halves=family.halves,
        windows=fields.windows(own, layers),
    )
    return family.from_gguf(fields, config)


def _ends(fields: Fields, family: Family, vocabulary: Vocabulary) -> frozenset[int]:
    """What ends an answer: what the file names, and what the family ends its turns with."""
    keys = (f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))
    named = {fields.token(key, len(vocabulary.tokens)) for key in keys} - {None}
    known = {vocabulary.tokens.index(text) for text in family.ends if text in vocabulary.tokens}
    return frozenset(token for token in named | known if token is not None)


def _refuse_variants(fields: Fields, own: str) -> None:
    for key, what in _VARIANTS.items():
        field = fields.fields.get(own + key)
        value = None if field is None else contents(field)
        if value not in (None, 0, 1.0, "none"):
            raise ModelError(f"it uses {what} ({own}{key} is {value!r:.60}), which is not supported; use another file")


def _vocabulary(fields: Fields) -> Vocabulary:
    model = fields.text("tokenizer.ggml.model")
    tokens = fields.array("tokenizer.ggml.tokens", str)
    kinds = fields.array("tokenizer.ggml.token_type", int) if "tokenizer.ggml.token_type" in fields.fields else []
    pieces = model == SENTENCEPIECE
    return Vocabulary(
        model=model,
        pre="" if pieces else fields.text("tokenizer.ggml.pre"),
        tokens=tuple(tokens),
        kinds=tuple(kinds or [1] * len(tokens)),
        merges=() if pieces else tuple(fields.array("tokenizer.ggml.merges", str)),
        scores=tuple(fields.array("tokenizer.ggml.scores", float)) if pieces else (),
        space_prefix=fields.flag("tokenizer.ggml.add_space_prefix", pieces),
    )


def _chat_template(fields: Fields) -> str:
    if "tokenizer.chat_template" not in fields.fields:
        raise ModelError("it has no chat template (tokenizer.chat_template); use a model that was made for chat")
    return fields.text("tokenizer.chat_template")


def _token_text(fields: Fields, vocabulary: Vocabulary, name: str) -> str:
    token = fields.token(f"tokenizer.ggml.{name}_token_id", len(vocabulary.tokens))
    return "" if token is None else vocabulary.tokens[token]
