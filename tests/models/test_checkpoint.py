"""Checkpoint folders, and the families beyond llama: held against what the transformers library computes.

tests/models/make_checkpoints.py made the folders and the numbers.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, TokenType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_reading import Reader

from strata.cpu.device import open_cpu
from strata.cpu.quantised import expand
from strata.errors import ModelError
from strata.messages import ChatMessage
from strata.models.architecture import Model
from strata.models.config import ModelConfig, RawTensor, Rope
from strata.models.file import ModelFile, open_model
from strata.models.gemma3 import GEMMA3
from strata.models.gguf_fields import Fields
from strata.models.halves import as_pairs
from strata.models.make import make_model

FOLDER = Path(__file__).parents[1] / "data" / "checkpoints"
NAMES = ("llama", "llama3", "mistral", "qwen2", "qwen2-windows", "qwen3", "yarn")
WITH_GEMMA = (*NAMES, "gemma3")


def said(name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return answer


def loaded(file: ModelFile) -> Model:
    model = make_model(file, open_cpu(1))
    model.allocate(8, 64, context=512, rows=4)
    return model


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=WITH_GEMMA)
def any_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return shutil.copytree(FOLDER / "qwen2", tmp_path / "qwen2")


def logits_agree(model: Model, name: str) -> None:
    expected = said(name)
    for at, logits in expected["logits"].items():
        reader = Reader(model, list(range(8)))
        got = reader.read(expected["tokens"][: int(at) + 1]).logits
        np.testing.assert_allclose(got, np.array(logits), atol=1e-4, rtol=0)


def test_the_logits_of_a_checkpoint_are_those_of_transformers(any_name: str) -> None:
    model = loaded(open_model(FOLDER / any_name))
    try:
        logits_agree(model, any_name)
    finally:
        model.close()


@pytest.mark.parametrize(
    ("values", "windows"),
    [
        ({"sliding_window": 64}, ()),
        ({"sliding_window": 64, "use_sliding_window": False}, ()),
        ({"sliding_window": None, "use_sliding_window": True}, ()),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1}, (0, 64)),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0}, (64, 64)),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 28}, (0, 0)),
        ({"sliding_window": 64, "model_type": "mistral"}, (64, 64)),
    ],
)
def test_a_window_is_for_the_layers_that_the_family_says(copy: Path, values: dict[str, Any], windows: object) -> None:
    """Where no list of layers says it, as older folders have none."""
    if values.get("model_type") == "mistral":
        shutil.copytree(FOLDER / "mistral", copy, dirs_exist_ok=True)
    settled = {"layer_types": None, "use_sliding_window": None, **values}
    changed(copy / "config.json", lambda config: config.update(settled))
    assert open_model(copy).config.windows == windows


def test_decoding_a_checkpoint_gives_the_logits_that_reading_it_gives(any_name: str) -> None:
    model = loaded(open_model(FOLDER / any_name))
    expected = said(any_name)
    try:
        reader = Reader(model, list(range(8)))
        reader.read(expected["tokens"][:60])
        decoded = [reader.decode(token).logits for token in expected["tokens"][60:65]]
        np.testing.assert_allclose(decoded[3], np.array(expected["logits"]["63"]), atol=1e-4, rtol=0)
        np.testing.assert_allclose(decoded[4], np.array(expected["logits"]["64"]), atol=1e-4, rtol=0)
    finally:
        model.close()


def test_the_same_weights_as_a_gguf_file_give_the_same_logits(any_name: str, tmp_path: Path) -> None:
    model = loaded(open_model(gguf_of(any_name, tmp_path)))
    try:
        logits_agree(model, any_name)
    finally:
        model.close()


@pytest.mark.parametrize("kind", ["gguf", "checkpoint"])
def test_texts_have_the_tokens_that_transformers_gives_them(any_name: str, kind: str, tmp_path: Path) -> None:
    tokenizer = open_model(FOLDER / any_name if kind == "checkpoint" else gguf_of(any_name, tmp_path)).tokenizer
    for one in said(any_name)["texts"]:
        assert tokenizer.encode(one["text"]) == [*said(any_name).get("begins", ()), *one["ids"]]
        assert b"".join(map(tokenizer.token_bytes, one["ids"])) == composed(any_name, one["text"]).encode()


@pytest.mark.parametrize("kind", ["gguf", "checkpoint"])
def test_gemma_says_what_it_is(kind: str, tmp_path: Path) -> None:
    """And its turns, its spaces and its ends are those of its own tokenizer."""
    file = open_model(FOLDER / "gemma3" if kind == "checkpoint" else gguf_of("gemma3", tmp_path))
    config, tokenizer = file.config, file.tokenizer
    assert config.windows == (24, 24, 24, 24, 24, 0, 24)
    assert (config.rope, config.local_rope) == (Rope(1e6, (8.0,) * 8), Rope(1e4))
    assert (config.attention_scale, config.embedding_scale, config.tied) == (16**-0.5, 32**0.5, True)
    assert (config.bos_id, config.add_bos, config.eos_ids, tokenizer.vocab_size) == (2, True, {1, 6}, 420)
    turns = (("system", "be brief"), ("user", " hi "), ("assistant", "yes"), ("user", "why?"))
    rendered = file.template.render([ChatMessage(role, text) for role, text in turns])
    assert rendered == said("gemma3")["chat"]
    assert tokenizer.encode(rendered).count(2) == 1
    assert tokenizer.hidden_ids >= {0, 1, 2, 4, 5, 6}
    assert tokenizer.token_bytes(tokenizer.encode("    x")[1]) == b"    "


def test_an_older_folder_of_gemma_says_the_same_by_other_names(tmp_path: Path) -> None:
    """As those on the Hub are: no list of layers, and one way to turn beside another's base."""
    folder = shutil.copytree(FOLDER / "gemma3", tmp_path / "gemma3")
    older = {
        "layer_types": None,
        "rope_parameters": None,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000,
        "rope_local_base_freq": 10_000,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    changed(folder / "config.json", lambda config: config.update(older))
    expected = open_model(FOLDER / "gemma3").config
    assert open_model(folder).config == expected
    changed(folder / "config.json", lambda config: config.update(query_pre_attn_scalar=100, sliding_window_pattern=3))
    config = open_model(folder).config
    assert (config.attention_scale, config.windows) == (0.1, (24, 24, 0, 24, 24, 0, 24))


@pytest.mark.parametrize("variant", ["final_logit_softcapping", "use_bidirectional_attention"])
def test_a_gemma_that_computes_otherwise_is_refused_by_name(tmp_path: Path, variant: str) -> None:
    """B37"""
    folder = shutil.copytree(FOLDER / "gemma3", tmp_path / "gemma3")
    changed(folder / "config.json", lambda config: config.update({variant: 30.0}))
    with pytest.raises(ModelError, match=f"it uses {variant}, which is not supported"):
        open_model(folder)


def test_the_largest_gemma_scales_its_queries_by_another_width_than_a_heads(tmp_path: Path) -> None:
    """Which its GGUF file doesn't say: it has as many layers as no other."""
    for layers, width in ((61, 16), (62, 32 / 4)):
        config = attrs.evolve(open_model(FOLDER / "gemma3").config, layers=layers)
        assert GEMMA3.from_gguf(Fields({}), config).attention_scale == width**-0.5


def test_a_checkpoint_says_what_it_is(name: str) -> None:
    file = open_model(FOLDER / name)
    config = file.config
    assert (file.name, config.context, config.vocab_size, config.eos_ids) == (name, 2048, 320, {2})
    assert file.quantisation == {"llama": "F32", "qwen2": "F32", "qwen3": "F16"}.get(name, "BF16")
    assert (config.qkv_bias, config.qk_norm, config.tied) == (
        name.startswith("qwen2"),
        name == "qwen3",
        name not in ("llama", "qwen3"),
    )
    assert config.windows == {"mistral": (24, 24), "qwen2-windows": (0, 40)}.get(name, ())
    assert file.size_bytes == sum(path.stat().st_size for path in (FOLDER / name).glob("*.safetensors"))
    assert file.template.render([ChatMessage("user", "hi")]).startswith("<|im_start|>user\nhi<|im_end|>")


def test_a_token_that_is_only_padding_has_no_text(name: str) -> None:
    tokenizer = open_model(FOLDER / name).tokenizer
    assert tokenizer.vocab_size == 320
    assert tokenizer.token_bytes(319) == b""
    with pytest.raises(IndexError):
        tokenizer.token_bytes(320)


# -- what is refused ------------------------------------------------------------------------------------------------


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")


def states(**values: Any) -> Callable[[Path], None]:
    return lambda folder: changed(folder / "config.json", lambda config: config.update(values))


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def holding(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(data) and None


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (states(model_type="gpt2"), "the model_type 'gpt2' is not supported"),
        (states(model_type=None), "no text for model_type"),
        (states(hidden_act="gelu"), "activation 'gelu'"),
        (states(use_sliding_window=True, sliding_window=0), "its sliding_window is 0"),
        (states(use_sliding_window=True, sliding_window=64, layer_types=["full_attention"]), "its layer_types are not"),
        (states(use_sliding_window=True, sliding_window=64, layer_types=["full_attention", {}]), "its layer_types"),
        (states(use_sliding_window=True, sliding_window=64, layer_types=None, max_window_layers="a"), "max_window"),
        (states(quantization_config={}), "weights are quantised"),
        (states(rope_parameters={"rope_type": "dynamic", "factor": 4.0}), "'dynamic' scaled positions"),
        (states(rope_parameters={"rope_type": "yarn", "factor": 0}), "its factor is 0"),
        (states(rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1}), "rope_theta is not above 1"),
        (states(rope_parameters={"partial_rotary_factor": 0.5}), "a part of each head"),
        (states(hidden_size=0), "its hidden_size is 0"),
        (states(num_hidden_layers=True), "its num_hidden_layers is True"),
        (states(num_hidden_layers=2_000_000_000, use_sliding_window=True), "states 2000000000 layers"),
        (states(num_hidden_layers=3), "the tensor blk.2.attn_norm.weight is missing"),
        (states(rms_norm_eps=float("nan")), "its rms_norm_eps is nan"),
        (states(num_key_value_heads=3), "its heads do not fit"),
        (states(intermediate_size=64), "ffn_gate.weight has shape (96, 64) where (64, 64) belongs"),
        (states(eos_token_id=["a"]), "names no token"),
        (without("tokenizer.json"), "has no tokenizer.json"),
        (without("model.safetensors"), "its model.safetensors cannot be read"),
        (without("chat_template.jinja"), "no chat template"),
        (holding("tokenizer.json", b"{}"), "tokenizer cannot be built"),
        (holding("tokenizer.json", b"["), "tokenizer.json is damaged"),
        (holding("model.safetensors", b""), "no safetensors file"),
        (holding("model.safetensors", b"\xff" * 64), "no safetensors file"),
        (
            holding("model.safetensors", (9000).to_bytes(8, "little") + b"[" * 9000),
            "header of model.safetensors is damaged",
        ),
        (holding("model.safetensors", b"\x08" + b"\0" * 7 + b'{"a": 1}'), "damaged entry for a"),
        (
            holding("model.safetensors.index.json", b'{"weight_map": {"a": "../b.safetensors"}}'),
            "names no weight files",
        ),
        (cut, "cut short"),
    ],
)
def test_a_checkpoint_that_can_not_be_run_is_refused_in_one_line(
    copy: Path, change: Callable[[Path], None], says: str
) -> None:
    """B37"""
    if "eos" in says or "token" in says:
        (copy / "generation_config.json").unlink()
    change(copy)
    with pytest.raises(ModelError) as refused:
        open_model(copy)
    assert says in str(refused.value)
    assert str(refused.value).startswith(f"{copy}: ")
    assert "\n" not in str(refused.value)


def test_a_folder_without_a_checkpoint_says_what_to_name(tmp_path: Path) -> None:
    """B37"""
    with pytest.raises(ModelError, match="without a config"):
        open_model(tmp_path)


_DAMAGE = st.tuples(
    st.sampled_from(["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]),
    st.integers(0, 4000),
    st.binary(min_size=1, max_size=8),
)


@given(damage=_DAMAGE)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_checkpoint_is_opened_or_refused_and_never_another_error(
    tmp_path: Path, damage: tuple[str, int, bytes]
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(FOLDER / "qwen3", folder, dirs_exist_ok=True)
    name, at, wrong = damage
    data = bytearray((folder / name).read_bytes())
    at %= len(data)
    data[at : at + len(wrong)] = wrong
    (folder / name).write_bytes(data)
    with contextlib.suppress(ModelError):
        open_model(folder)


# -- the two orders of a head's elements ----------------------------------------------------------------------------


@given(heads=st.integers(1, 4), half=st.integers(1, 8), rest=st.integers(0, 4), columns=st.sampled_from([None, 1, 32]))
def test_reordering_puts_each_pair_side_by_side_and_moves_nothing_else(
    heads: int, half: int, rest: int, columns: int | None
) -> None:
    dim = 2 * half + rest
    shape = (heads * dim,) if columns is None else (heads * dim, columns)
    numbers = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    config = settled(head_dim=dim, rope_dim=2 * half)
    moved = as_pairs(RawTensor("x", "F32", shape, numbers.reshape(-1).view(np.uint8)), config)
    got = moved.data.view(np.float32).reshape(heads, dim, -1)
    was = numbers.reshape(heads, dim, -1)
    for pair in range(half):
        np.testing.assert_array_equal(got[:, 2 * pair], was[:, pair])
        np.testing.assert_array_equal(got[:, 2 * pair + 1], was[:, pair + half])
    np.testing.assert_array_equal(got[:, 2 * half :], was[:, 2 * half :])


def settled(**values: Any) -> ModelConfig:
    return attrs.evolve(open_model(FOLDER / "qwen2").config, **values)


def composed(name: str, text: str) -> str:
    """What a family's tokens spell of a text."""
    return unicodedata.normalize("NFC", text) if name.startswith("qwen") else text


# -- the same model as GGUF -----------------------------------------------------------------------------------------


def gguf_of(name: str, folder: Path) -> Path:
    """In a folder where its index may be written too."""
    if name == "gemma3":
        return Path(shutil.copy(FOLDER / "gemma3.gguf", folder))
    return as_gguf(open_model(FOLDER / name), folder / f"{name}.gguf")


def as_gguf(file: ModelFile, path: Path) -> Path:
    """Written by GGUF's own library, by the conventions of each family: llama's pairs are neighbours there."""
    config = file.config
    writer = gguf.GGUFWriter(path, config.architecture)
    writer.add_name(file.name)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.feed_forward)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_layer_norm_rms_eps(config.rms_eps)
    if config.windows:
        writer.add_sliding_window(max(config.windows))
        if not all(config.windows):
            writer.add_sliding_window_pattern([window > 0 for window in config.windows])
    _add_vocabulary(writer, file)
    for tensor in _tensors(file):
        writer.add_tensor(tensor.name, _numbers(tensor), raw_dtype=GGMLQuantizationType.F32)
    scaling = json.loads((file.path / "config.json").read_text(encoding="utf-8"))["rope_parameters"]
    if scaling["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    elif config.rope.factors:
        writer.add_tensor("rope_freqs.weight", np.array(config.rope.factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: gguf.GGUFWriter, file: ModelFile) -> None:
    folder = json.loads((file.path / "tokenizer.json").read_text(encoding="utf-8"))
    ids = folder["model"]["vocab"] | {token["content"]: token["id"] for token in folder["added_tokens"]}
    tokens = sorted(ids, key=lambda token: ids[token])
    padding = [f"[PAD{n}]" for n in range(len(tokens), file.config.vocab_size)]
    special = {token["content"] for token in folder["added_tokens"]}
    kinds = [TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe" if file.config.architecture == "llama" else "qwen2")
    writer.add_token_list([*tokens, *padding])
    writer.add_token_types([*kinds, *[TokenType.UNUSED] * len(padding)])
    writer.add_token_merges([" ".join(merge) for merge in folder["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template((file.path / "chat_template.jinja").read_text(encoding="utf-8"))


def _tensors(file: ModelFile) -> Iterator[RawTensor]:
    for tensor in file.tensors.values():
        turned = file.architecture == "llama" and tensor.name.endswith(("attn_q.weight", "attn_k.weight"))
        yield as_pairs(tensor, file.config) if turned else tensor


def _numbers(tensor: RawTensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    out = np.empty(tensor.shape, np.float32)
    expand(tensor, out.reshape(-1, tensor.shape[-1]))
    return out
