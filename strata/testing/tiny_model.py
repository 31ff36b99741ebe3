"""A tiny llama model as a GGUF file, for tests that need a real file, tokenizer and forward pass, but no sense.

Its weights are random and the same for the same arguments, on every machine.  Knows GGUF's writer and nothing of ours,
so that what reads the file is tried against the format and not against itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import gguf
import numpy as np
from attrs import field, frozen
from gguf import GGMLQuantizationType, TokenType
from numpy.typing import NDArray

SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Tokens 0, 1 and 2; the last ends an answer."""

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

MERGES: Final = (
    *("h e", "t h", "i n", "e r", "a n", "o n", "r e", "o u", "s t", "e n", "o r", "a s", "u s", "i s", "a t"),
    *("Ġ t", "Ġ a", "Ġ s", "Ġ w", "Ġ o", "Ġ Ġ", "Ġt he", "in g", "er s", "an d", "Ġ and", "o f", "Ġ of"),
    *("st e", "ste m", "s y", "sy stem", "us er", "as s", "ass is", "assis t", "an t", "assist ant"),
    *("ĠĠ ĠĠ", "w or", "l d", "wor ld", "l l", "he ll", "hell o", "Ã ©", "ðŁ ĺ", "ð Ł"),
)
"""A few merges of every sort: words, spaces, characters of two bytes and parts of those of four."""


@frozen(kw_only=True)
class _Shape:
    """The sizes of the model to write; see `write_tiny_model`."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    context: int
    kind: GGMLQuantizationType
    tied: bool
    vocab: tuple[str, ...] = field(repr=False)


def write_tiny_model(
    path: Path,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    feed_forward: int = 128,
    context: int = 2048,
    kind: str = "F32",
    tied: bool = False,
    seed: int = 0,
    change: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:
    """Write a llama model with random weights to `path` and return it; equal arguments give equal bytes.

    `kind` (`F32`, `F16`, `BF16`, `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0`) is that of the matrices; `hidden` and
    `feed_forward` are multiples of 32 where it is a quantised one.  The vocabulary has every byte, a few merges and the
    tokens `SPECIAL`.
    `change` may alter what is about to be written, for files that are wrong on purpose.  The file comes whole or not
    at all.
    """
    shape = _Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=feed_forward,
        context=context,
        kind=GGMLQuantizationType[kind],
        tied=tied,
        vocab=tuple(vocabulary()),
    )
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    writer = gguf.GGUFWriter(part, "llama")
    _write_sizes(writer, shape)
    _write_tokenizer(writer, shape)
    _write_weights(writer, shape, np.random.default_rng(seed))
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(path)
    return path


def vocabulary() -> Iterator[str]:
    """The tokens in order of their ids: special ones, one for each byte, one for each merge."""
    yield from SPECIAL
    yield from byte_characters()
    yield from dict.fromkeys(merge.replace(" ", "") for merge in merges())


def merges() -> tuple[str, ...]:
    """The merges, each after those that make its halves."""
    return tuple(sorted(MERGES, key=len))


def byte_characters() -> list[str]:
    """The printable stand-in of each byte 0-255 in byte-level BPE (GPT-2, `encoder.py`, `bytes_to_unicode`)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _write_sizes(writer: gguf.GGUFWriter, shape: _Shape) -> None:
    writer.add_name("Tiny random llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(shape.vocab))


def _write_tokenizer(writer: gguf.GGUFWriter, shape: _Shape) -> None:
    kinds = [TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (len(shape.vocab) - len(SPECIAL))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(list(shape.vocab))
    writer.add_token_types(kinds)
    writer.add_token_merges(list(merges()))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _write_weights(writer: gguf.GGUFWriter, shape: _Shape, random: np.random.Generator) -> None:
    for name, rows, columns in _matrices(shape):
        weight = random.standard_normal((rows, columns), dtype=np.float32)
        if name != "token_embd.weight":
            # Large enough that attention and feed-forward outweigh the token itself: the answers depend on the past.
            weight *= np.float32(2.0 / np.sqrt(columns))
        _add(writer, name, weight, shape.kind)
    for name in _norms(shape):
        weight = random.uniform(0.5, 1.5, shape.hidden).astype(np.float32)
        _add(writer, name, weight, GGMLQuantizationType.F32)


def _add(writer: gguf.GGUFWriter, name: str, weight: NDArray[np.float32], kind: GGMLQuantizationType) -> None:
    writer.add_tensor(name, gguf.quantize(weight, kind), raw_dtype=kind)


def _matrices(shape: _Shape) -> Iterator[tuple[str, int, int]]:
    """Name, rows and columns of each matrix."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", len(shape.vocab), shape.hidden
    for layer in range(shape.layers):
        yield f"blk.{layer}.attn_q.weight", q, shape.hidden
        yield f"blk.{layer}.attn_k.weight", kv, shape.hidden
        yield f"blk.{layer}.attn_v.weight", kv, shape.hidden
        yield f"blk.{layer}.attn_output.weight", shape.hidden, q
        yield f"blk.{layer}.ffn_gate.weight", shape.feed_forward, shape.hidden
        yield f"blk.{layer}.ffn_up.weight", shape.feed_forward, shape.hidden
        yield f"blk.{layer}.ffn_down.weight", shape.hidden, shape.feed_forward
    if not shape.tied:
        yield "output.weight", len(shape.vocab), shape.hidden


def _norms(shape: _Shape) -> Iterator[str]:
    for layer in range(shape.layers):
        yield f"blk.{layer}.attn_norm.weight"
        yield f"blk.{layer}.ffn_norm.weight"
    yield "output_norm.weight"
