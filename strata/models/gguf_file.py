"""A GGUF file's metadata, read once by the `gguf` library and turned into an index.

A room of its own because it is slow, rarely needed and must doubt every number that it reads: the file comes from
somebody else.  Knows the format's names (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md); computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from attrs import frozen
from gguf import GGUFEndian, GGUFReader, GGUFValueType, ReaderField, ReaderTensor
from numpy.typing import DTypeLike, NDArray

from strata.errors import ModelError
from strata.models.config import KINDS, MAX_SIZE, ModelConfig
from strata.models.families import Family, family_of
from strata.models.index import Index, TensorEntry, sha256_of
from strata.models.tokenizer import Vocabulary, tokenizer_json

_VARIANTS: Final[Mapping[str, str]] = {
    "expert_count": "mixture of experts",
}
"""Keys that change the arithmetic; one that says something refuses the file rather than give wrong text."""

_FACTORS: Final = "rope_freqs.weight"
"""A tensor of constants: what each pair's speed of rotation is divided by."""

_T = TypeVar("_T")


def read_gguf(path: Path) -> Index:
    """What the file says, checked; seconds for a large vocabulary.

    Raises ModelError for what is not GGUF, is cut short, contradicts itself, or is of a kind that isn't supported.
    """
    stat = path.stat()
    reader = _open(path)
    fields = _Fields(reader.fields)
    family = family_of(fields.text("general.architecture"))
    tensors = _entries([tensor for tensor in reader.tensors if tensor.name != _FACTORS])
    vocabulary = _vocabulary(fields)
    return Index(
        sha256=sha256_of(path),
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        config=_config(fields, family, vocabulary, tensors, _rope_factors(fields, family, reader.tensors)),
        tensors=tensors,
        tokenizer_json=tokenizer_json(vocabulary),
        special=vocabulary.special,
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
        raise ModelError(f"its metadata is damaged ({_one_line(error)}); fetch it again") from error
    if reader.endianess != GGUFEndian.LITTLE:
        raise ModelError("it is a big-endian GGUF file, which is not supported; use a little-endian one")
    return reader


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


@frozen
class _Fields:
    """Typed access to the metadata.  A missing or wrong value is a ModelError that names its key."""

    fields: Mapping[str, ReaderField]

    def text(self, key: str) -> str:
        return self._value(key, str)

    def flag(self, key: str, default: bool) -> bool:
        return self._value(key, bool, default)

    def size(self, key: str, default: int | None = None) -> int:
        """A number of things: at least 1."""
        value = self._value(key, int, default)
        if not 0 < value < MAX_SIZE:
            raise ModelError(f"its {key} is {value}, which cannot be; fetch it again or use another file")
        return value

    def count(self, key: str) -> int:
        """A number of things that may be none, as where the file doesn't say."""
        return self.size(key) if self._value(key, int, 0) else 0

    def flags(self, key: str, layers: int) -> list[bool]:
        """One for each layer: stated as such, or as n where every n-th is not meant; all where the file doesn't say."""
        field = self.fields.get(key)
        if field is None or field.types[0] != GGUFValueType.ARRAY:
            every = 0 if field is None else self.count(key)
            return [every == 0 or (layer + 1) % every != 0 for layer in range(layers)]
        if len(stated := self.array(key, bool)) != layers:
            raise ModelError(
                f"its {key} has {len(stated)} flags for {layers} layers; fetch it again or use another file"
            )
        return stated

    def positive(self, key: str, default: float | None = None) -> float:
        value = self._value(key, float, default)
        if not (math.isfinite(value) and value > 0):
            raise ModelError(f"its {key} is {value}, which cannot be; fetch it again or use another file")
        return value

    def array(self, key: str, kind: type[_T]) -> list[_T]:
        """Text, whole numbers or flags."""
        value = self._value(key, list)
        if not all(isinstance(item, kind) for item in value):
            raise ModelError(f"its {key} has items of a wrong type; fetch it again or use another file")
        return value

    def token(self, key: str, vocab_size: int) -> int | None:
        """A token's id, None if the file names none."""
        if key not in self.fields:
            return None
        value = self._value(key, int)
        if not 0 <= value < vocab_size:
            raise ModelError(f"its {key} is {value}, outside the vocabulary; fetch it again or use another file")
        return value

    def _value(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        field = self.fields.get(key)
        if field is None:
            if default is not None:
                return default
            raise ModelError(f"it does not state {key}; fetch it again or use another file")
        try:
            value = _contents(field)
        except (ValueError, IndexError, TypeError) as error:
            raise ModelError(f"its {key} is damaged ({_one_line(error)}); fetch it again") from error
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ModelError(f"its {key} is {value!r:.60}, which is no {kind.__name__}; use another file")
        return value


def _contents(field: ReaderField) -> Any:
    """As the library says; but it gives None for an empty array."""
    if field.types[0] == GGUFValueType.ARRAY and not field.data:
        return []
    return field.contents()


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


def _rope_factors(fields: _Fields, family: Family, tensors: list[ReaderTensor]) -> tuple[float, ...]:
    """How much slower than trained each pair turns: one factor for all, or a tensor with one for each."""
    own = f"{family.name}."
    kind = fields.text(f"{own}rope.scaling.type") if f"{own}rope.scaling.type" in fields.fields else "none"
    if kind not in ("none", "linear"):
        raise ModelError(f"it uses {kind} scaled positions ({own}rope.scaling.type), which is not supported")
    factor = fields.positive(f"{own}rope.scaling.factor", fields.positive(f"{own}rope.scale_linear", 1.0))
    for tensor in tensors:
        if tensor.name == _FACTORS:
            if tensor.tensor_type.name != "F32":
                raise ModelError(f"its {_FACTORS} is of the kind {tensor.tensor_type.name}; use another file")
            return tuple(factor * float(one) for one in tensor.data.reshape(-1))
    return () if factor == 1 else (factor,) * (_rope_dim(fields, own) // 2)


def _head_dim(fields: _Fields, own: str) -> int:
    hidden, heads = fields.size(f"{own}embedding_length"), fields.size(f"{own}attention.head_count")
    return fields.size(f"{own}attention.key_length", max(1, hidden // heads))


def _rope_dim(fields: _Fields, own: str) -> int:
    return fields.size(f"{own}rope.dimension_count", _head_dim(fields, own))


def _config(
    fields: _Fields,
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
    count = len(vocabulary.tokens)
    ends = (fields.token(f"tokenizer.ggml.{end}_token_id", count) for end in ("eos", "eot", "eom"))
    return ModelConfig(
        architecture=family.name,
        name=fields.text("general.name") if "general.name" in fields.fields else "",
        vocab_size=count,
        layers=fields.size(f"{own}block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=fields.size(f"{own}feed_forward_length"),
        context=fields.size(f"{own}context_length"),
        rms_eps=fields.positive(f"{own}attention.layer_norm_rms_epsilon"),
        rope_theta=fields.positive(f"{own}rope.freq_base", 10_000.0),
        rope_dim=rope_dim,
        tied=all(tensor.name != "output.weight" for tensor in tensors),
        eos_ids=frozenset(end for end in ends if end is not None),
        bos_id=fields.token("tokenizer.ggml.bos_token_id", count),
        add_bos=fields.flag("tokenizer.ggml.add_bos_token", False),
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        halves=family.halves,
        windows=_windows(fields, own),
        rope_factors=rope_factors,
    )


def _windows(fields: _Fields, own: str) -> tuple[int, ...]:
    """One window for all layers, or for those that the pattern names: all but every n-th, or a flag for each."""
    window, layers = fields.count(f"{own}attention.sliding_window"), fields.size(f"{own}block_count")
    if window == 0:
        return ()
    every = fields.flags(f"{own}attention.sliding_window_pattern", layers)
    return tuple(window if windowed else 0 for windowed in every)


def _refuse_variants(fields: _Fields, own: str) -> None:
    for key, what in _VARIANTS.items():
        field = fields.fields.get(own + key)
        value = None if field is None else _contents(field)
        if value not in (None, 0, 1.0, "none"):
            raise ModelError(f"it uses {what} ({own}{key} is {value!r:.60}), which is not supported; use another file")


def _vocabulary(fields: _Fields) -> Vocabulary:
    tokens = fields.array("tokenizer.ggml.tokens", str)
    kinds = fields.array("tokenizer.ggml.token_type", int) if "tokenizer.ggml.token_type" in fields.fields else []
    return Vocabulary(
        model=fields.text("tokenizer.ggml.model"),
        pre=fields.text("tokenizer.ggml.pre"),
        tokens=tuple(tokens),
        kinds=tuple(kinds or [1] * len(tokens)),
        merges=tuple(fields.array("tokenizer.ggml.merges", str)),
    )


def _chat_template(fields: _Fields) -> str:
    if "tokenizer.chat_template" not in fields.fields:
        raise ModelError("it has no chat template (tokenizer.chat_template); use a model that was made for chat")
    return fields.text("tokenizer.chat_template")


def _token_text(fields: _Fields, vocabulary: Vocabulary, name: str) -> str:
    token = fields.token(f"tokenizer.ggml.{name}_token_id", len(vocabulary.tokens))
    return "" if token is None else vocabulary.tokens[token]
