"""Model files of every kind, whole and broken, opened for real.  Knows the tiny model's writer."""

from __future__ import annotations

import math
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pytest
from attrs import evolve
from gguf import GGMLQuantizationType, GGUFValueType
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import ModelError
from strata.models import open_model
from strata.models.config import KINDS, Rope
from strata.models.file import WEIGHTS, OpenedOnce
from strata.models.index import load_index, save_index
from strata.testing.tiny_model import write_tiny_model

Change = Callable[[gguf.GGUFWriter], None]


def states(key: str, value: object, kind: GGUFValueType = GGUFValueType.UINT32, items: object = None) -> Change:
    """The file says this of that key."""

    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0][key] = gguf.GGUFValue(value, kind, items)

    return change


def without(key: str) -> Change:
    return lambda writer: writer.kv_data[0].pop(key) and None


def without_tensor(name: str) -> Change:
    return lambda writer: writer.tensors[0].pop(name) and None


def with_tensor(name: str, rows: int, columns: int, kind: str = "F32") -> Change:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.tensors[0].pop(name, None)
        number = GGMLQuantizationType[kind]
        data = gguf.quantize(np.ones((rows, columns), np.float32), number)
        writer.add_tensor(name, data, raw_dtype=number)

    return change


def refusal(path: Path) -> str:
    """The one line with which the file is refused, which begins with its path."""
    with pytest.raises(ModelError) as caught:
        open_model(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    return said


def windows(pattern: int | list[bool] | list[int] | None) -> Change:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(24)
        if pattern is not None:
            writer.add_sliding_window_pattern(pattern)

    return change


def scaled(kind: str, **more: float) -> Change:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_string("llama.rope.scaling.type", kind)
        for name, value in {"factor": 4.0, **more}.items():
            writer.add_float32(f"llama.rope.scaling.{name}", value)

    return change


def both(first: Change, second: Change) -> Change:
    def change(writer: gguf.GGUFWriter) -> None:
        first(writer)
        second(writer)

    return change


def refused_or_opened(path: Path) -> str:
    try:
        return repr(open_model(path))
    except ModelError as error:
        return str(error)


def test_a_file_is_opened_with_its_sizes_and_its_weights_as_they_lie_there(tmp_path: Path) -> None:
    for kind in (kind for kind in KINDS if not kind.endswith("_K")):  # the library can't write those
        path = write_tiny_model(tmp_path / f"tiny-{kind}.gguf", layers=3, kind=kind, tied=kind == "Q8_0")
        model = open_model(path)
        assert (model.name, model.architecture, model.quantisation) == (f"tiny-{kind}", "llama", kind)
        assert model.size_bytes == path.stat().st_size
        config = model.config
        assert (config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim) == (3, 64, 4, 2, 16)
        assert (config.vocab_size, config.context, config.tied) == (307, 2048, kind == "Q8_0")
        assert (config.eos_ids, config.bos_id, config.rope_dim) == ({2}, 1, 16)
        for tensor in gguf.GGUFReader(path).tensors:
            raw = model.tensors[tensor.name]
            assert raw.kind == tensor.tensor_type.name
            assert raw.shape == tuple(reversed(tensor.shape.tolist()))
            assert raw.data.tobytes() == tensor.data.tobytes()
            assert not raw.data.flags.writeable


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [(None, (24, 24, 24)), (2, (24, 0, 24)), (0, (24, 24, 24)), ([False, True, True], (0, 24, 24))],
)
def test_a_window_is_for_all_layers_or_for_those_of_the_pattern(
    tmp_path: Path, pattern: int | list[bool] | None, expected: tuple[int, ...]
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", layers=3, change=windows(pattern))
    assert open_model(path).config.windows == expected


def test_scaled_positions_slow_pairs_down(tmp_path: Path) -> None:
    def rope(change: Change) -> Rope:
        return open_model(write_tiny_model(tmp_path / "tiny.gguf", change=change)).config.rope

    assert rope(scaled("linear")) == Rope(10_000.0, (4.0,) * 8)
    slower = rope(scaled("yarn", attn_factor=0.5))
    assert slower.factors[0] == 1
    assert slower.factors[-1] == 4
    assert [*slower.factors] == sorted(slower.factors)
    assert slower.scale == pytest.approx(0.5 * (1 + 0.1 * math.log(4)))
    assert rope(scaled("yarn", yarn_beta_fast=3e5, yarn_beta_slow=2e5)).factors == (1.0, *[4.0] * 7)


def test_equal_arguments_give_equal_tiny_models(tmp_path: Path) -> None:
    first, second, other = (
        write_tiny_model(tmp_path / f"{n}.gguf", seed=seed, kind="Q4_1").read_bytes()
        for n, seed in enumerate((7, 7, 8))
    )
    assert first == second != other


def test_the_weights_outlive_the_name_of_the_file(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    tensors = open_model(path).tensors
    before = {name: tensor.data.tobytes() for name, tensor in tensors.items()}
    write_tiny_model(path, seed=1)
    assert {name: tensor.data.tobytes() for name, tensor in tensors.items()} == before


def test_a_model_that_is_let_go_leaves_no_open_file(tmp_path: Path) -> None:
    """B42"""
    path = write_tiny_model(tmp_path / "tiny.gguf")
    for _ in range(2):
        model = open_model(path)
        del model
    assert str(path) not in {os.readlink(f"/proc/self/fd/{fd}") for fd in _open_files()}


def test_what_is_no_model_file_is_refused_in_one_line(tmp_path: Path) -> None:
    """B37"""
    assert "no such file; name a GGUF file or run `strata pull`" in refusal(tmp_path / "missing.gguf")
    assert "is a folder" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")
    (tmp_path / "empty.gguf").touch()
    assert "is empty" in refusal(tmp_path / "empty.gguf")
    (tmp_path / "wrong.gguf").write_bytes(b"PK\x03\x04 this is a zip")
    assert "not a GGUF file" in refusal(tmp_path / "wrong.gguf")
    assert "no such file" in refusal(tmp_path / "empty.gguf" / "below")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (states("general.architecture", "gemma2", GGUFValueType.STRING), "the architecture 'gemma2' is not supported"),
        (with_tensor("blk.0.ffn_up.weight", 128, 256, "TQ2_0"), "of the kind TQ2_0, which is not supported"),
        (states("tokenizer.ggml.model", "bert", GGUFValueType.STRING), "the tokenizer 'bert'"),
        (states("tokenizer.ggml.pre", "viking", GGUFValueType.STRING), "the pre-tokenizer 'viking'"),
        (states("llama.expert_count", 8), "mixture of experts"),
        (states("llama.rope.scaling.type", "longrope", GGUFValueType.STRING), "longrope scaled positions"),
        (scaled("yarn", yarn_ext_factor=0.5), "a variant of YaRN (llama.rope.scaling.yarn_ext_factor)"),
        (scaled("yarn", yarn_log_multiplier=1.0), "a variant of YaRN (llama.rope.scaling.yarn_log_multiplier)"),
        (with_tensor("rope_freqs.weight", 1, 9), "not one factor of rotation for each pair"),
        (with_tensor("rope_freqs.weight", 1, 8, "F16"), "rope_freqs.weight is of the kind F16"),
        (with_tensor("blk.1.attn_q.bias", 1, 64), "a variant of llama that is not supported (the tensor blk.1.attn_q"),
        (without("tokenizer.chat_template"), "no chat template"),
        (states("tokenizer.chat_template", "{% if %}", GGUFValueType.STRING), "chat template cannot be compiled"),
    ],
)
def test_a_kind_of_model_that_is_not_supported_is_refused_by_name(tmp_path: Path, change: Change, says: str) -> None:
    """B37"""
    assert says in refusal(write_tiny_model(tmp_path / "odd.gguf", change=change))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without_tensor("blk.1.attn_k.weight"), "the tensor blk.1.attn_k.weight is missing"),
        (without_tensor("token_embd.weight"), "the tensor token_embd.weight is missing"),
        (with_tensor("blk.0.attn_v.weight", 64, 64), "attn_v.weight has shape (64, 64) where (32, 64) belongs"),
        (without("llama.block_count"), "does not state llama.block_count"),
        (states("llama.block_count", 2_000_000_000), "states 2000000000 layers"),
        (both(windows(None), states("llama.block_count", 2_000_000_000)), "states 2000000000 layers"),
        (states("llama.embedding_length", 0), "embedding_length is 0"),
        (states("llama.attention.head_count_kv", 3), "heads do not fit"),
        (windows([True]), "sliding_window_pattern has 1 flags for 2 layers"),
        (windows([1, 0]), "sliding_window_pattern has items of a wrong type"),
        (states("llama.attention.value_length", 8), "heads do not fit"),
        (states("llama.rope.dimension_count", 18), "rope.dimension_count is 18"),
        (states("llama.context_length", "long", GGUFValueType.STRING), "context_length is 'long'"),
        (states("llama.rope.freq_base", float("nan"), GGUFValueType.FLOAT32), "freq_base is nan"),
        (states("tokenizer.ggml.eos_token_id", 307), "eos_token_id is 307, outside the vocabulary"),
        (states("tokenizer.ggml.tokens", ["a", "b", "c"], GGUFValueType.ARRAY), "as many kinds as tokens"),
        (states("tokenizer.ggml.tokens", [1, 2], GGUFValueType.ARRAY), "items of a wrong type"),
        (with_tensor("a\nb\r\u2028c" * 99, 1, 1), "the tensor a b ca b c"),
        (states("tokenizer.ggml.merges", ["nothing"], GGUFValueType.ARRAY), "merges do not fit"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused_by_what_is_wrong(tmp_path: Path, change: Change, says: str) -> None:
    """B37"""
    assert says in refusal(write_tiny_model(tmp_path / "wrong.gguf", change=change))


@given(share=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None)
def test_a_file_that_is_cut_short_anywhere_is_refused(
    tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    """B37: in the header, in the metadata, between the tensors or one byte before the end."""
    whole = tiny_model_path.read_bytes()
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    path.write_bytes(whole[: int(len(whole) * share)])
    said = refusal(path)
    assert "cut short" in said or "not a GGUF file" in said or "damaged" in said


def test_a_file_that_lost_its_last_byte_after_it_was_indexed_is_refused(tmp_path: Path) -> None:
    """B37"""
    path = write_tiny_model(tmp_path / "tiny.gguf")
    open_model(path)
    os.truncate(path, path.stat().st_size - 1)
    assert "cut short" in refusal(path)


@given(place=st.integers(4, 12_000), value=st.binary(min_size=1, max_size=9))
@settings(max_examples=200, deadline=None)
def test_damaged_metadata_gives_a_model_or_a_refusal_and_never_another_error(
    tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory, place: int, value: bytes
) -> None:
    """B37"""
    damaged = bytearray(tiny_model_path.read_bytes())
    damaged[place : place + len(value)] = value
    path = tmp_path_factory.mktemp("damaged") / "damaged.gguf"
    path.write_bytes(damaged)
    assert "\n" not in refused_or_opened(path)


@pytest.mark.parametrize(
    "hostile",
    [
        struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 0),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 60),
        struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, (1 << 64) - 1),
        struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 0, 1 << 60),
        struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 5000,
        struct.pack("<4sIQQ", b"GGUF", 99, 0, 0),
        struct.pack(">4sIQQ", b"GGUF", 3, 0, 0),
    ],
    ids=["tensors", "keys", "string", "array", "nested", "version", "big-endian"],
)
def test_a_hostile_header_is_refused_at_once(tmp_path: Path, hostile: bytes) -> None:
    """B37"""
    path = tmp_path / "hostile.gguf"
    path.write_bytes(hostile + bytes(64))
    refusal(path)


def test_a_big_endian_file_is_refused_by_that_name(tmp_path: Path) -> None:
    """B37"""

    def swapped(writer: gguf.GGUFWriter) -> None:
        writer.endianess = gguf.GGUFEndian.BIG

    assert "big-endian" in refusal(write_tiny_model(tmp_path / "big.gguf", change=swapped))


def test_two_names_of_a_file_open_alike(tiny_model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to(tiny_model_path)
    shutil.copy(tiny_model_path, tmp_path / "copy.gguf")
    link, copy = open_model(tmp_path / "link.gguf"), open_model(tmp_path / "copy.gguf")
    assert link.name == "link"
    assert link.config == copy.config == open_model(tiny_model_path).config


def _open_files() -> list[str]:
    # The listing itself opens one that is gone afterwards.
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


def test_who_only_computes_imports_neither_tokenizers_nor_templates(tiny_model_path: Path) -> None:
    whole = open_model(tiny_model_path)
    weights = open_model(tiny_model_path, WEIGHTS)
    assert (weights.config, weights.sha256, weights.name) == (whole.config, whole.sha256, whole.name)
    assert weights.tensors.keys() == whole.tensors.keys()
    code = "import sys; from pathlib import Path; from strata.models.file import WEIGHTS, open_model\n"
    code += (
        "open_model(Path(sys.argv[1]), WEIGHTS).tensors; print({'tokenizers', 'jinja2', 'gguf'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_model_path)], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_a_file_is_opened_once_whoever_asks_first(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    file = OpenedOnce(path)
    assert not file.is_quick, "its metadata has yet to be parsed"
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda _: file(), range(8)))
    assert len(set(map(id, opened))) == 1
    assert OpenedOnce(path).is_quick
    assert repr(file) == "<OpenedOnce tiny.gguf, open>"


def test_what_can_not_be_opened_is_refused_to_each_that_asks(tmp_path: Path) -> None:
    file = OpenedOnce(tmp_path / "nothing.gguf")
    for _ in range(2):
        with pytest.raises(ModelError, match="there is no such file"):
            file()


def test_weights_that_an_index_has_wrong_are_looked_up_in_the_file(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf")
    true = open_model(path).tensors
    index = load_index(path)
    assert index is not None
    save_index(path, evolve(index, tensors=index.tensors[:-1]))
    file = OpenedOnce(path)
    assert file().tokenizer is not None
    found = file.with_weights()
    assert found.tensors.keys() == true.keys()
    assert file() is found


def test_weights_that_can_not_be_had_are_refused_by_the_name_of_their_file(tmp_path: Path) -> None:
    """B37: found when they are asked for, after all else was."""
    path = write_tiny_model(tmp_path / "tiny.gguf")
    file = OpenedOnce(path)
    file()
    path.unlink()
    with pytest.raises(ModelError, match=r"tiny\.gguf: there is no such file"):
        file.with_weights()
