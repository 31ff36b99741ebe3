"""A checkpoint folder as the transformers library writes it: config.json, tokenizer.json and safetensors files.

Its metadata is turned into the same index that a GGUF file has, by names and sizes alone: the weights stay where they
lie.  Every number is doubted: the folder comes from somebody else.  Knows the folder's names
(https://huggingface.co/docs/safetensors); computes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from strata.errors import ModelError
from strata.models.config import KINDS, MAX_SIZE, ModelConfig
from strata.models.families import family_of_checkpoint
from strata.models.family import Family
from strata.models.index import Index, TensorEntry
from strata.models.layout import refuse_more_layers_than_tensors
from strata.models.stated import CONFIG, Stated

_MAX_HEADER_BYTES: Final = 100 << 20
"""What the format's own library takes at most."""

_KINDS: Final[Mapping[str, str]] = {kind: kind for kind in ("F32", "F16", "BF16") if kind in KINDS}

_WHOLE: Final[Mapping[str, str]] = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def read_checkpoint(folder: Path) -> Index:
    """What the folder says, checked.  Raises ModelError for what is damaged, or of a kind that isn't supported."""
    stated = Stated(_read_json(folder / CONFIG))
    family = family_of_checkpoint(stated.text("model_type"))
    _refuse_variants(stated, family)
    tensors = tuple(_tensors(folder, family.names))
    tied = stated.flag("tie_word_embeddings", family.tied)
    if tied:
        # Some writers store the head all the same; it is the embedding.
        tensors = tuple(entry for entry in tensors if entry.name != "output.weight")
    chat = _read_json(folder / "tokenizer_config.json")
    tokenizer = _read_text(folder / "tokenizer.json")
    spelling = _spelling(tokenizer)
    add_bos = chat.get("add_bos_token", spelling.begins) is True
    return Index(
        sha256="",
        size=sum((folder / name).stat().st_size for name in {entry.file for entry in tensors}),
        mtime_ns=(folder / CONFIG).stat().st_mtime_ns,
        config=_config(stated, family, folder, tied=tied, add_bos=add_bos, tensors=len(tensors)),
        tensors=tensors,
        tokenizer_json=tokenizer,
        special=spelling.special,
        byte_fallback=spelling.byte_fallback,
        chat_template=_chat_template(folder, chat),
        bos_text=_token_text(chat, "bos_token"),
        eos_text=_token_text(chat, "eos_token"),
    )


def _refuse_variants(stated: Stated, family: Family) -> None:
    """What changes the arithmetic refuses the checkpoint rather than give wrong text."""
    activation = stated.values.get("hidden_activation", stated.values.get("hidden_act", family.activations[0]))
    if activation not in family.activations:
        raise ModelError(f"its activation {activation!r:.60} is not supported; use another")
    if stated.values.get("quantization_config") is not None:
        raise ModelError("its weights are quantised, which is supported in GGUF files only; use one of those")


def _config(stated: Stated, family: Family, folder: Path, *, tied: bool, add_bos: bool, tensors: int) -> ModelConfig:
    hidden, heads = stated.size("hidden_size"), stated.size("num_attention_heads")
    head_dim = stated.size("head_dim", max(1, hidden // heads))
    layers, context = stated.size("num_hidden_layers"), stated.size("max_position_embeddings")
    refuse_more_layers_than_tensors(layers, tensors)
    bos = stated.ids("bos_token_id")
    config = ModelConfig(
        architecture=family.name,
        name=folder.resolve().name,
        vocab_size=stated.size("vocab_size"),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=stated.size("num_key_value_heads", heads),
        head_dim=head_dim,
        feed_forward=stated.size("intermediate_size"),
        context=context,
        rms_eps=stated.positive("rms_norm_eps"),
        rope=stated.and_part("rope_scaling").and_part("rope_parameters").rope(head_dim, context),
        rope_dim=head_dim,
        tied=tied,
        eos_ids=_ends(folder) or stated.ids("eos_token_id"),
        bos_id=min(bos, default=None),
        add_bos=add_bos,
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        halves=True,
        windows=stated.windows(layers, in_use=family.windowed),
    )
    return family.from_checkpoint(stated, config)


def _ends(folder: Path) -> frozenset[int]:
    """What ends an answer, where the folder says so apart from the model."""
    path = folder / "generation_config.json"
    return Stated(_read_json(path)).ids("eos_token_id") if path.exists() else frozenset()


# -- weights --------------------------------------------------------------------------------------------------------


def _tensors(folder: Path, names: Mapping[str, str]) -> Iterator[TensorEntry]:
    for name in _weight_files(folder):
        yield from _entries(folder, name, names)


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


def _entries(folder: Path, file: str, names: Mapping[str, str]) -> Iterator[TensorEntry]:
    header, start = _header(folder / file)
    for name, entry in header.items():
        if name == "__metadata__" or name.endswith(".rotary_emb.inv_freq"):
            continue
        try:
            kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        except (KeyError, TypeError, ValueError):
            raise ModelError(f"{file} has a damaged entry for {name:.100}; fetch it again") from None
        yield TensorEntry(
            name=_name(name, names),
            kind=_kind(kind, name),
            shape=_shape(shape, name),
            offset=start + begin,
            file=file,
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


def _name(name: str, names: Mapping[str, str]) -> str:
    """GGUF's name for a tensor; one that has none keeps its own, and is refused with the layout."""
    if name in _WHOLE:
        return _WHOLE[name]
    found = re.fullmatch(r"model\.layers\.(\d{1,6})\.(.+)\.(weight|bias)", name)
    if found is None or found[2] not in names:
        return name
    return f"blk.{int(found[1])}.{names[found[2]]}.{found[3]}"


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


@frozen
class _Spelling:
    """What a tokenizer.json says of how tokens are written."""

    special: frozenset[int]
    """Tokens whose text is their own."""
    byte_fallback: bool
    """Whether the others are written as SentencePiece does; so are then those that are added and not special: runs of
    spaces are among them."""
    begins: bool
    """Whether a text begins with a token that it doesn't have."""


def _spelling(tokenizer: str) -> _Spelling:
    try:
        parts = json.loads(tokenizer)
        byte_fallback, added = "ByteFallback" in json.dumps(parts.get("decoder")), parts.get("added_tokens") or ()
        own = (token for token in added if not byte_fallback or token.get("special"))
        last = parts.get("post_processor") or {}
        templates = (step["single"] for step in (last, *last.get("processors", ())) if "single" in step)
        begins = any("SpecialToken" in template[0] for template in templates)
        return _Spelling(frozenset(int(token["id"]) for token in own), byte_fallback, begins)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
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
