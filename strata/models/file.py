"""A model file, opened: its sizes, its weights as they lie there, its tokenizer and its chat template.

Puts together what the rest of this room makes.  Knows no format, no arithmetic and no device.
"""

from __future__ import annotations

import math
import mmap
import stat
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from attrs import field, frozen

from strata.errors import ModelError
from strata.models.config import ModelConfig, RawTensor, stored_bytes
from strata.models.index import Index, TensorEntry, has_index, load_index, save_index
from strata.models.stated import CONFIG

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from strata.models.template import ChatTemplate
    from strata.models.tokenizer import Tokenizer


@frozen(kw_only=True)
class ModelFile:
    """All that a file offers; each part is made when it is first asked for; ModelError or OSError then."""

    path: Path
    _index: Index = field(repr=False)

    @property
    def config(self) -> ModelConfig:
        return self._index.config

    @property
    def sha256(self) -> str:
        return self._index.sha256

    @property
    def size_bytes(self) -> int:
        return self._index.size

    @property
    def name(self) -> str:
        return name_of(self.path)

    @property
    def architecture(self) -> str:
        return self.config.architecture

    @property
    def quantisation(self) -> str:
        """The kind that most of the weights are of: `Q4_1`."""
        weights: Counter[str] = Counter()
        for entry in self._index.tensors:
            weights[entry.kind] += math.prod(entry.shape)
        return weights.most_common(1)[0][0]

    @cached_property
    def tensors(self) -> Mapping[str, RawTensor]:
        """The weights as they lie there, mapped for as long as one of them is held."""
        # Here and not above, as all that takes long to import: an engine needs no vocabulary, and a server no numbers.
        from strata.models.layout import refuse_misfits

        entries = self._index.tensors
        refuse_misfits(self.config, {entry.name: entry.shape for entry in entries})
        files = {name: _mapped(self.path / name if name else self.path) for name in {entry.file for entry in entries}}
        return {e.name: RawTensor(e.name, e.kind, e.shape, _part(files[e.file], e)) for e in entries}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        from strata.models.tokenizer import Tokenizer

        index, config = self._index, self._index.config
        return Tokenizer(
            index.tokenizer_json,
            special=index.special,
            eos_ids=config.eos_ids,
            bos_id=config.bos_id,
            add_bos=config.add_bos,
            vocab_size=config.vocab_size,
            byte_fallback=index.byte_fallback,
        )

    @cached_property
    def template(self) -> ChatTemplate:
        from strata.models.template import ChatTemplate

        return ChatTemplate(self._index.chat_template, bos_text=self._index.bos_text, eos_text=self._index.eos_text)


Part = Literal["tensors", "tokenizer", "template"]
WEIGHTS: Final[tuple[Part, ...]] = ("tensors",)
LANGUAGE: Final[tuple[Part, ...]] = ("tokenizer", "template")


def name_of(path: Path) -> str:
    """The model's name where none other is set: the file's, without its ending, or the folder's."""
    if path.suffix == ".gguf":
        return path.stem
    folder = path.resolve()
    # As the Hub's cache has it: models--org--name/snapshots/revision.
    return folder.parents[1].name.split("--")[-1] if folder.parent.name == "snapshots" else folder.name


class OpenedOnce:
    """A model file that is opened by whoever needs it first, on whatever thread, and by nobody again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: ModelFile | None = None
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"<OpenedOnce {self.path.name}, {'open' if self._file else 'not yet'}>"

    @property
    def is_quick(self) -> bool:
        """Whether its metadata needn't be parsed, so that others may open it too."""
        return self._file is None and has_index(self.path)

    @property
    def sha256(self) -> str | None:
        """Of the file that was opened; None: none yet, or it has none."""
        return (self._file.sha256 or None) if self._file else None

    def __call__(self) -> ModelFile:
        """With a language that can be spoken; its weights weren't looked at.  Raises ModelError."""
        with self._opening:
            if self._file is None:
                self._file = open_model(self.path, LANGUAGE)
            return self._file

    def with_weights(self) -> ModelFile:
        """The same with its weights looked at, made anew if they are not as its index has them.  Raises ModelError."""
        file = self()
        with self._opening:
            try:
                _ = file.tensors
            except (ModelError, OSError):
                # By the index alone it would be refused for what the index may have wrong.
                self._file = file = open_model(self.path)
            return file


def open_model(path: Path, parts: Iterable[Part] = (*WEIGHTS, *LANGUAGE)) -> ModelFile:
    """Open a GGUF file by the index beside it, which is made (seconds) where it isn't there or not to be believed; or a
    checkpoint folder (config.json, tokenizer.json, safetensors).

    `parts`: what is made at once; what is wrong with others is found when they are asked for.  Raises ModelError, one
    line that names the file and says what to do: nothing there, cut short, damaged, or of an architecture,
    quantisation or tokenizer that isn't supported.
    """
    try:
        if (path / CONFIG).is_file():
            from strata.models.checkpoint import read_checkpoint

            return _open(path, read_checkpoint(path), parts)
        _refuse_what_is_no_file(path)
        return _by_index(path, parts) or _by_metadata(path, parts)
    except ModelError as error:
        # Parts of it are the file's own words: names may hold line breaks and be long.
        raise ModelError(f"{path}: {' '.join(str(error).split())[:400]}") from error
    except OSError as error:
        why = error.strerror or error
        raise ModelError(
            f"{path}: {_unread(path, error)} cannot be read ({why}); check the path and its rights"
        ) from error


def _unread(path: Path, error: OSError) -> str:
    """Of a folder, which of its files."""
    within = error.filename is not None and Path(error.filename).parent == path
    return f"its {Path(error.filename).name}" if within else "it"


def _refuse_what_is_no_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError("there is no such file; name a GGUF file or run `strata pull`") from None
    if stat.S_ISDIR(mode):
        raise ModelError("it is a folder without a config.json; name the GGUF file in it, or a checkpoint's folder")
    if not stat.S_ISREG(mode):
        raise ModelError("it is not a regular file; name a GGUF file")


def _by_index(path: Path, parts: Iterable[Part]) -> ModelFile | None:
    index = load_index(path)
    try:
        return None if index is None else _open(path, index, parts)
    except ModelError:
        # Whatever is wrong with the index, the file itself has the last word.
        return None


def _by_metadata(path: Path, parts: Iterable[Part]) -> ModelFile:
    from strata.models.gguf_file import read_gguf

    index = read_gguf(path)
    opened = _open(path, index, parts)
    save_index(path, index)
    return opened


def _open(path: Path, index: Index, parts: Iterable[Part]) -> ModelFile:
    opened = ModelFile(path=path, index=index)
    for part in parts:
        getattr(opened, part)
    return opened


def _mapped(path: Path) -> NDArray[np.uint8]:
    import numpy as np

    if path.stat().st_size == 0:
        raise ModelError(f"{path.name} is empty; fetch it again")
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)


def _part(mapped: NDArray[np.uint8], entry: TensorEntry) -> NDArray[np.uint8]:
    end = entry.offset + stored_bytes(entry.kind, entry.shape)
    if entry.offset < 0 or end > len(mapped):
        raise ModelError(f"it is cut short: {len(mapped)} bytes, and {end} are needed; fetch it again")
    return mapped[entry.offset : end]
