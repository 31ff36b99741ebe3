"""A checkpoint folder as the transformers library writes it: config.json, tokenizer.json and safetensors files.

Its metadata is turned into the same index that a GGUF file has, by names and sizes alone: the weights stay where they
lie.  Every number is doubted: the folder comes from somebody else.  Knows the folder's names
(https://huggingface.co/docs/safetensors); computes nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from strata.errors import ModelError
from strata.models.config import KINDS, MAX_SIZE, ModelConfig
from strata.models.families import Family, family_of_checkpoint
from strata.models.index import Index, TensorEntry

CONFIG: Final = "config.json"

_MAX_HEADER_BYTES: Final = 100 << 20
"""What the format's own library takes at most."""

_KINDS: Final[Mapping[str, str]] = {kind: kind for kind in ("F32", "F16", "BF16") if kind in KINDS}

_NAMES: Final[Mapping[str, str]] = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Of a layer's parts: the checkpoint's name -> GGUF's."""

_WHOLE: Final[Mapping[str, str]] = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}

_WINDOWED, _WHOLE_PAST = "sliding_attention", "full_attention"
"""Kinds of layers."""

_SILU: Final = ("silu", "swish")


def read_checkpoint(folder: Path) -> Index:
    """What the folder says, checked.  Raises ModelError for what is damaged, or of a kind that isn't supported."""
    stated = Stated(_read_json(folder / CONFIG))
    family = family_of_checkpoint(stated.text("model_type"))
    _refuse_variants(stated)
    tensors = tuple(_tensors(folder))
    tied = stated.flag("tie_word_embeddings", False)
    if tied:
        # Some writers store the head all the same; it is the embedding.
        tensors = tuple(entry for entry in tensors if entry.name != "output.weight")
    chat = _read_json(folder / "tokenizer_config.json")
    tokenizer = _read_text(folder / "tokenizer.json")
    special, byte_fallback = _spelling(tokenizer)
    return Index(
        sha256="",
        size=sum((folder / name).stat().st_size for name in {entry.file for entry in tensors}),
        mtime_ns=(folder / CONFIG).stat().st_mtime_ns,
        config=_config(stated, family, folder, tied=tied, add_bos=chat.get("add_bos_token") is True),
        tensors=tensors,
        tokenizer_json=tokenizer,
        special=special,
        byte_fallback=byte_fallback,
        chat_template=_chat_template(folder, chat),
        bos_text=_token_text(chat, "bos_token"),
        eos_text=_token_text(chat, "eos_token"),
    )


@frozen
class Stated:
    """Typed access to a JSON object.  A missing or wrong value is a ModelError that names it."""

    values: Mapping[str, Any]

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str):
            raise ModelError(f"its {CONFIG} has no text for {key}; fetch it again or use another")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        return value if isinstance(value, bool) else default

    def size(self, key: str, default: int | None = None) -> int:
        """A number of things: at least 1."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < MAX_SIZE:
            raise ModelError(f"its {key} is {value!r:.60}, which cannot be; fetch it again or use another")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not (math.isfinite(value) and value > 0):
            raise ModelError(f"its {key} is {value!r:.60}, which cannot be; fetch it again or use another")
        return float(value)

    def ids(self, key: str) -> frozenset[int]:
        """A token, or several, or none."""
        value = self.values.get(key)
        several = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in several):
            raise ModelError(f"its {key} is {value!r:.60}, which names no token; fetch it again or use another")
        return frozenset(several)

    def part(self, key: str) -> Stated:
        value = self.values.get(key)
        return Stated(value if isinstance(value, Mapping) else {})


def _refuse_variants(stated: Stated) -> None:
    """What changes the arithmetic refuses the checkpoint rather than give wrong text."""
    if stated.values.get("hidden_act", "silu") not in _SILU:
        raise ModelError(f"its activation {stated.values['hidden_act']!r:.60} is not supported; use another")
    if stated.values.get("quantization_config") is not None:
        raise ModelError("its weights are quantised, which is supported in GGUF files only; use one of those")


def _config(stated: Stated, family: Family, folder: Path, *, tied: bool, add_bos: bool) -> ModelConfig:
    hidden, heads = stated.size("hidden_size"), stated.size("num_attention_heads")
    head_dim = stated.size("head_dim", max(1, hidden // heads))
    rope = Stated({**stated.values, **stated.part("rope_scaling").values, **stated.part("rope_parameters").values})
    theta = rope.positive("rope_theta", 10_000.0)
    context = stated.size("max_position_embeddings")
    bos = stated.ids("bos_token_id")
    return ModelConfig(
        architecture=family.name,
        name=folder.resolve().name,
        vocab_size=stated.size("vocab_size"),
        layers=stated.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=stated.size("num_key_value_heads", heads),
        head_dim=head_dim,
        feed_forward=stated.size("intermediate_size"),
        context=context,
        rms_eps=stated.positive("rms_norm_eps"),
        rope_theta=theta,
        rope_dim=head_dim,
        tied=tied,
        eos_ids=_ends(folder) or stated.ids("eos_token_id"),
        bos_id=min(bos, default=None),
        add_bos=add_bos,
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        halves=True,
        windows=_windows(stated, family, stated.size("num_hidden_layers")),
        rope_factors=_rope_factors(rope, theta, head_dim),
    )


def _windows(stated: Stated, family: Family, layers: int) -> tuple[int, ...]:
    """One window for those layers that the folder names, or from some layer on."""
    if stated.values.get("sliding_window") is None or not stated.flag("use_sliding_window", family.windowed):
        return ()
    window, kinds = stated.size("sliding_window"), stated.values.get("layer_types")
    if kinds is None:
        return tuple(window if layer >= _first_windowed(stated) else 0 for layer in range(layers))
    if (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or not all(kind in (_WINDOWED, _WHOLE_PAST) for kind in kinds)
    ):
        raise ModelError(f"its layer_types are not {_WINDOWED} or {_WHOLE_PAST} for each layer; use another")
    return tuple(window if kind == _WINDOWED else 0 for kind in kinds)


def _first_windowed(stated: Stated) -> int:
    value = stated.values.get("max_window_layers", 0)
    return 0 if value == 0 else stated.size("max_window_layers")


def _ends(folder: Path) -> frozenset[int]:
    """What ends an answer, where the folder says so apart from the model."""
    path = folder / "generation_config.json"
    return Stated(_read_json(path)).ids("eos_token_id") if path.exists() else frozenset()


def _rope_factors(rope: Stated, theta: float, turned: int) -> tuple[float, ...]:
    """What each pair's speed is divided by: https://huggingface.co/docs/transformers/internal/rope_utils."""
    match rope.values.get("rope_type", rope.values.get("type", "default")):
        case "default":
            return ()
        case "linear":
            return (rope.positive("factor"),) * (turned // 2)
        case "llama3":
            return tuple(_llama3(rope, theta, turned))
        case other:
            raise ModelError(f"it uses {other!r:.60} scaled positions, which is not supported; use another")


def _llama3(rope: Stated, theta: float, turned: int) -> Iterator[float]:
    """Slow pairs are stretched by the factor, fast ones are not, those between in part.

    https://arxiv.org/abs/2407.21783, section 3.4.3; the constants are the checkpoint's own.
    """
    factor, trained = rope.positive("factor"), rope.size("original_max_position_embeddings")
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if low >= high:
        raise ModelError("its low_freq_factor is not below its high_freq_factor; fetch it again or use another")
    for pair in range(turned // 2):
        turns = trained * theta ** (-2 * pair / turned) / (2 * math.pi)
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        yield 1 / (kept + (1 - kept) / factor)


# -- weights --------------------------------------------------------------------------------------------------------


def _tensors(folder: Path) -> Iterator[TensorEntry]:
    for name in _weight_files(folder):
        yield from _entries(folder, name)


def _weight_files(folder: Path) -> tuple[str, ...]:
    """One file, or those that an index names."""
    listing = folder / "model.safetensors.index.json"
    if not listing.exists():
        return ("model.safetensors",)
    names = set(Stated(_read_json(listing)).part("weight_map").values.values())
    # Nothing outside the folder is ever opened because a file in it says so.
    if not names or not all(isinstance(name, str) and re.fullmatch(r"[\w.-]+\.safetensors", name) for name in names):
        raise ModelError(f"its {listing.name} names no weight files; fetch it again")
    return tuple(sorted(names))


def _entries(folder: Path, file: str) -> Iterator[TensorEntry]:
    header, start = _header(folder / file)
    for name, entry in header.items():
        if name == "__metadata__" or name.endswith(".rotary_emb.inv_freq"):
            continue
        try:
            kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        except (KeyError, TypeError, ValueError):
            raise ModelError(f"{file} has a damaged entry for {name:.100}; fetch it again") from None
        yield TensorEntry(
            name=_name(name), kind=_kind(kind, name), shape=_shape(shape, name), offset=start + begin, file=file
        )
        if not (isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end):
            raise ModelError(f"{file} has a damaged place for {name:.100}; fetch it again")


def _header(path: Path) -> tuple[Mapping[str, Any], int]:
    """The table of tensors, and where their bytes begin."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= _MAX_HEADER_BYTES:
            raise ModelError(f"{path.name} is no safetensors file, or damaged; fetch it again")
        text = file.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"the header of {path.name} is damaged; fetch it again") from error
    if len(text) < length or not isinstance(header, dict):
        raise ModelError(f"the header of {path.name} is damaged; fetch it again")
    return header, 8 + length


def _name(name: str) -> str:
    """GGUF's name for a tensor; one that has none keeps its own, and is refused with the layout."""
    if name in _WHOLE:
        return _WHOLE[name]
    found = re.fullmatch(r"model\.layers\.(\d{1,6})\.(.+)\.(weight|bias)", name)
    if found is None or found[2] not in _NAMES:
        return name
    return f"blk.{int(found[1])}.{_NAMES[found[2]]}.{found[3]}"


def _kind(kind: object, name: str) -> str:
    if kind not in _KINDS:
        raise ModelError(
            f"the tensor {name:.100} is of the kind {kind!r:.20}, which is not supported; {', '.join(_KINDS)} are"
        )
    return _KINDS[str(kind)]


def _shape(shape: tuple[Any, ...], name: str) -> tuple[int, ...]:
    if not all(isinstance(size, int) and not isinstance(size, bool) and 0 < size < MAX_SIZE for size in shape):
        raise ModelError(f"the tensor {name:.100} has a shape that cannot be; fetch it again")
    return shape


# -- text -----------------------------------------------------------------------------------------------------------


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(f"it has no {path.name}; fetch it again or use another") from None
    except UnicodeDecodeError as error:
        raise ModelError(f"its {path.name} is no text; fetch it again") from error


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"its {path.name} is damaged ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"its {path.name} is no JSON object; fetch it again")
    return value


def _spelling(tokenizer: str) -> tuple[frozenset[int], bool]:
    """Tokens whose text is their own, and whether the others are written as SentencePiece does."""
    try:
        parts = json.loads(tokenizer)
        added = frozenset(int(token["id"]) for token in parts.get("added_tokens") or ())
        return added, "ByteFallback" in json.dumps(parts.get("decoder"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"its tokenizer.json is damaged ({error}); fetch it again") from error


def _chat_template(folder: Path, chat: Mapping[str, Any]) -> str:
    """A file of its own, or a part of the tokenizer's settings; of several the one for plain chats."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return _read_text(path)
    found = chat.get("chat_template")
    if isinstance(found, list):
        found = next(
            (one.get("template") for one in found if isinstance(one, dict) and one.get("name") == "default"), None
        )
    if not isinstance(found, str):
        raise ModelError("it has no chat template; use a model that was made for chat")
    return found


def _token_text(chat: Mapping[str, Any], key: str) -> str:
    token = chat.get(key)
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else ""
