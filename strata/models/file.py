"""A model file, opened: its sizes, its weights as they lie there, its tokenizer and its chat template.

Puts together what the rest of this room makes.  Knows no format, no arithmetic and no device.
"""

from __future__ import annotations

import math
import mmap
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from strata.errors import ModelError
from strata.models.checkpoint import read_checkpoint
from strata.models.config import ModelConfig, RawTensor, stored_bytes
from strata.models.index import Index, TensorEntry, load_index, save_index
from strata.models.layout import refuse_misfits
from strata.models.stated import CONFIG
from strata.models.template import ChatTemplate
from strata.models.tokenizer import Tokenizer


@frozen(kw_only=True)
class ModelFile:
    """All that a file offers.  The weights stay mapped for as long as one of `tensors` is held."""

    path: Path
    config: ModelConfig
    tokenizer: Tokenizer
    template: ChatTemplate
    tensors: Mapping[str, RawTensor] = field(repr=lambda tensors: f"<{len(tensors)} tensors>")
    sha256: str
    size_bytes: int
    quantisation: str
    """The kind that most of the weights are of: `Q4_1`."""

    @property
    def name(self) -> str:
        """The model's name where none other is set: the file's, without its ending, or the folder's."""
        if self.path.suffix == ".gguf":
            return self.path.stem
        folder = self.path.resolve()
        # As the Hub's cache has it: models--org--name/snapshots/revision.
        return folder.parents[1].name.split("--")[-1] if folder.parent.name == "snapshots" else folder.name

    @property
    def architecture(self) -> str:
        return self.config.architecture


def open_model(path: Path) -> ModelFile:
    """Open a GGUF file by the index beside it, which is made (seconds) where it isn't there or not to be believed; or a
    checkpoint folder (config.json, tokenizer.json, safetensors).

    Raises ModelError, one line that names the file and says what to do: nothing there, cut short, damaged, or of an
    architecture, quantisation or tokenizer that isn't supported.
    """
    try:
        if (path / CONFIG).is_file():
            return _open(path, read_checkpoint(path))
        _refuse_what_is_no_file(path)
        return _by_index(path) or _by_metadata(path)
    except ModelError as error:
        # Parts of it are the file's own words: names may hold line breaks and be long.
        raise ModelError(f"{path}: {' '.join(str(error).split())[:400]}") from error
    except OSError as error:
        why = error.strerror or error
        raise ModelError(f"{path}: it cannot be read ({why}); check the path and its rights") from error


def _refuse_what_is_no_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError("there is no such file; name a GGUF file or run `strata pull`") from None
    if stat.S_ISDIR(mode):
        raise ModelError("it is a folder without a config.json; name the GGUF file in it, or a checkpoint's folder")
    if not stat.S_ISREG(mode):
        raise ModelError("it is not a regular file; name a GGUF file")


def _by_index(path: Path) -> ModelFile | None:
    index = load_index(path)
    try:
        return None if index is None else _open(path, index)
    except ModelError:
        # Whatever is wrong with the index, the file itself has the last word.
        return None


def _by_metadata(path: Path) -> ModelFile:
    # Here and not above: the library costs a tenth of a second that a start with an index need not spend.
    from strata.models.gguf_file import read_gguf

    index = read_gguf(path)
    opened = _open(path, index)
    save_index(path, index)
    return opened


def _open(path: Path, index: Index) -> ModelFile:
    config = index.config
    refuse_misfits(config, {entry.name: entry.shape for entry in index.tensors})
    return ModelFile(
        path=path,
        config=config,
        tokenizer=Tokenizer(
            index.tokenizer_json,
            special=index.special,
            eos_ids=config.eos_ids,
            bos_id=config.bos_id,
            add_bos=config.add_bos,
            vocab_size=config.vocab_size,
            byte_fallback=index.byte_fallback,
        ),
        template=ChatTemplate(index.chat_template, bos_text=index.bos_text, eos_text=index.eos_text),
        tensors=_map_tensors(path, index.tensors),
        sha256=index.sha256,
        size_bytes=index.size,
        quantisation=_quantisation(index.tensors),
    )


def _map_tensors(path: Path, entries: tuple[TensorEntry, ...]) -> dict[str, RawTensor]:
    files = {entry.file: _mapped(path / entry.file if entry.file else path) for entry in entries}
    return {
        entry.name: RawTensor(entry.name, entry.kind, entry.shape, _part(files[entry.file], entry)) for entry in entries
    }


def _mapped(path: Path) -> NDArray[np.uint8]:
    if path.stat().st_size == 0:
        raise ModelError(f"{path.name} is empty; fetch it again")
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)


def _part(mapped: NDArray[np.uint8], entry: TensorEntry) -> NDArray[np.uint8]:
    end = entry.offset + stored_bytes(entry.kind, entry.shape)
    if entry.offset < 0 or end > len(mapped):
        raise ModelError(f"it is cut short: {len(mapped)} bytes, and {end} are needed; fetch it again")
    return mapped[entry.offset : end]


def _quantisation(entries: tuple[TensorEntry, ...]) -> str:
    weights: Counter[str] = Counter()
    for entry in entries:
        weights[entry.kind] += math.prod(entry.shape)
    return weights.most_common(1)[0][0]
