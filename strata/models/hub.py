"""Models by their name on the Hugging Face Hub: `org/name`, or `org/name/file.gguf` for one file of several.

The huggingface_hub library fetches them, resumes what was cut off, and keeps them in its own cache, where other
programs have them too; what is there is found without a network.  Knows names and files; nothing of what is in them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from strata.errors import ModelError

_NAME: Final = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<file>[\w./-]+\.gguf))?")

_CHECKPOINT: Final = ("*.json", "*.jinja", "*.safetensors")
"""What a checkpoint folder is made of; the same weights in other formats are left where they are."""
_FILES: Final = ("*.gguf",)
ANSWER_S: Final = 20.0
"""How long the Hub may take to say what a repository has."""


def find_model(name: str | Path, *, cache: Path | None = None) -> Path:
    """A file or folder by its path, or by its name on the Hub if it was pulled.  Never asks the network.

    What is neither comes back as a path, for whoever opens it to say so.  Raises ModelError for a path
    that can't be looked at, and for a name on the Hub that isn't in the cache (None: the library's own), or stands for
    several files.
    """
    path, hub = Path(name), _NAME.fullmatch(str(name))
    if not str(name):
        raise ModelError("no model is named: an empty name is neither a path nor a name on the Hub")
    try:
        is_there = path.exists()
    except OSError as error:
        raise ModelError(f"{name}: can't be looked at ({error.strerror or error})") from error
    if is_there or hub is None or str(name).startswith((".", "/", "~")):
        return path
    return _Repo(str(name), hub["repo"], hub["file"], cache).find()


def pull_model(name: str, *, cache: Path | None = None, endpoint: str | None = None) -> Path:
    """Fetch a model of the Hub, or what of it isn't there yet, with its progress on stderr.

    `endpoint`: another address than the Hub's own.  Raises ModelError.
    """
    hub = _NAME.fullmatch(name)
    if hub is None:
        raise ModelError(f"{name!r} is no name on the Hub; they are org/name, or org/name/file.gguf")
    return _Repo(name, hub["repo"], hub["file"], cache, endpoint).fetch()


@frozen
class _Repo:
    """A model as it was named.  The library is imported late: half a second that a start with a path need not spend."""

    name: str
    repo: str
    file: str | None
    cache: Path | None
    endpoint: str | None = None

    def find(self) -> Path:
        from huggingface_hub.errors import LocalEntryNotFoundError

        # Each sort for itself: the library gives a folder only if all that was asked for is in it.
        for wanted in (list(_CHECKPOINT), list(_FILES)):
            with suppress(LocalEntryNotFoundError):
                if (found := self._get(wanted, offline=True)) is not None:
                    return found
        raise ModelError(f"{self.name} is not here, as a file or from the Hub; `strata pull {self.name}` fetches it")

    def fetch(self) -> Path:
        try:
            files = self._files()
        except ModelError:
            # What was pulled before is good enough where nobody can be asked.
            with suppress(ModelError):
                return self.find()
            raise
        found = self._get(None if self.file else _wanted(files, self.name), offline=False)
        assert found is not None, "what was wanted is there"
        return found

    def _get(self, wanted: list[str] | None, *, offline: bool) -> Path | None:
        from huggingface_hub import hf_hub_download, snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        where: Any = {"cache_dir": self.cache, "endpoint": self.endpoint, "local_files_only": offline}
        try:
            if self.file is not None:
                return Path(hf_hub_download(self.repo, self.file, **where))
            return _opened_as(Path(snapshot_download(self.repo, allow_patterns=wanted, **where)), self.name)
        except Exception as error:  # What the library and its HTTP client raise is no short list.
            if isinstance(error, ModelError) or (offline and isinstance(error, LocalEntryNotFoundError)):
                raise
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> ModelError:
        why = " ".join(str(error).split())[:300]
        return ModelError(f"{self.name} could not be fetched ({why}); check the name and the network")

    def _files(self) -> list[str]:
        """Asked for in one request, which the library doesn't repeat: without a network that is known at once."""
        from huggingface_hub import HfApi

        try:
            info = HfApi(endpoint=self.endpoint).model_info(self.repo, timeout=ANSWER_S)
        except Exception as error:
            raise self._failed(error) from error
        return [file.rfilename for file in info.siblings or ()]


def _wanted(files: list[str], name: str) -> list[str]:
    """Of a repository's files those of its checkpoint; where there is none, the GGUF file, if there is one."""
    if "config.json" in files and any(file.endswith(".safetensors") for file in files):
        return list(_CHECKPOINT)
    return [_only_gguf([file for file in files if file.endswith(".gguf")], name)]


def _opened_as(folder: Path, name: str) -> Path | None:
    """The checkpoint in a folder of the cache, or its GGUF file; None if it has neither."""
    if (folder / "config.json").exists() and any(folder.glob("*.safetensors")):
        return folder
    files = [str(file.relative_to(folder)) for file in folder.rglob("*.gguf")]
    return folder / _only_gguf(files, name) if files else None


def _only_gguf(files: list[str], name: str) -> str:
    if len(files) == 1:
        return files[0]
    if not files:
        raise ModelError(f"{name} has neither a checkpoint in safetensors nor a GGUF file; use another model")
    listed = ", ".join(f"{name}/{file}" for file in sorted(files)[:12])
    raise ModelError(f"{name} has several GGUF files; name one of them: {listed}")
