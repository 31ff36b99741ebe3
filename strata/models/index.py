"""The index beside a model file: all that a start needs of the file's metadata, so that it need not be parsed again.

Parsing GGUF metadata takes seconds; reading the index takes milliseconds.  The index is only ever a copy: one that is
stale, damaged or from another build of Strata is not believed, and is made again.  It is no seal: its sizes and places
are checked again as the file's own are, but whoever may write it may change what it says as they may change the model.
Knows what an index says and where it lies; nothing of GGUF.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import msgspec
import platformdirs
from attrs import evolve, frozen

from strata.models.config import ModelConfig
from strata.models.whole_file import written_whole

_MAGIC: Final = b"strata model index 3\n"
"""Its number is raised when a field changes its meaning, or the tokenizer is built in another way; then indexes that
older builds made are made again."""

_DIGEST_BYTES: Final = 32

_MAX_BYTES: Final = 512 << 20
"""Far above that of the largest vocabulary; a larger file of this name is not an index."""


@frozen
class TensorEntry:
    """Where a weight lies: `offset` in bytes from the start of the file; how many follows from the others."""

    name: str
    kind: str
    shape: tuple[int, ...]
    """Rows first, as in NumPy."""
    offset: int
    file: str = ""
    """Of a checkpoint folder: which of its files."""


@frozen(kw_only=True)
class Index:
    """What a model file says, without its weights, and the file that said it."""

    sha256: str
    size: int
    mtime_ns: int
    config: ModelConfig
    tensors: tuple[TensorEntry, ...]
    tokenizer_json: str
    """As `tokenizers` writes and reads it."""
    special: frozenset[int]
    """Tokens that stand for themselves as a whole and not for the bytes of their characters' stand-ins."""
    byte_fallback: bool = False
    """Whether tokens are written as SentencePiece does, and not by stand-ins for bytes."""
    chat_template: str
    bos_text: str
    eos_text: str
    """What the template's `bos_token` and `eos_token` stand for; empty where the file names none."""


def has_index(path: Path) -> bool:
    """Whether there is one, to be believed or not."""
    return any(map(_is_file, _places(path)))


def load_index(path: Path) -> Index | None:
    """The index of the model file at `path`, or None if there is none that can be believed.

    A file with another time of change but the same bytes keeps its index (it was copied).
    """
    stat = path.stat()
    for place in _places(path):
        index = _read(place)
        if index is None or index.size != stat.st_size:
            continue
        if index.mtime_ns == stat.st_mtime_ns:
            return index
        if index.sha256 == sha256_of(path):
            moved = evolve(index, mtime_ns=stat.st_mtime_ns)
            save_index(path, moved)
            return moved
    return None


def save_index(path: Path, index: Index) -> Path | None:
    """Write the index beside the file, or in the user's cache, and say where; None if neither can be written.

    Without it everything works, only the next start is slower.
    """
    payload = msgspec.msgpack.encode(index)
    for place in _places(path):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(place) as file:
                file.write(_MAGIC + _digest(payload) + payload)
        except OSError:
            continue
        return place
    return None


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hex; about a second for each gigabyte."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _places(path: Path) -> tuple[Path, Path]:
    """Beside the file first; the user's cache is for folders that we may not write."""
    whole_path = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()
    cache = platformdirs.user_cache_path("strata") / "indexes" / f"{whole_path}.strata-index"
    # A path such as `.` has no name of its own, and that of a folder has no index.
    return path.parent / f"{path.name}.strata-index", cache


def _is_file(place: Path) -> bool:
    try:
        return place.is_file()
    except OSError:
        # Its name, longer than the model's, is too long; or its folder may not be entered.
        return False


def _read(place: Path) -> Index | None:
    try:
        if not place.is_file() or place.stat().st_size > _MAX_BYTES:
            return None
        data = place.read_bytes()
    except OSError:
        return None
    payload = data[len(_MAGIC) + _DIGEST_BYTES :]
    if data[: len(_MAGIC) + _DIGEST_BYTES] != _MAGIC + _digest(payload):
        return None
    try:
        return msgspec.msgpack.decode(payload, type=Index)
    except msgspec.DecodeError:
        return None


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()
