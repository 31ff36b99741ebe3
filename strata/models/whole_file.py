"""A file that others see whole or not at all, however many write it at once and wherever one of them is stopped.

Knows names and renames; nothing of what is written.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a new file beside `path` that takes its place when the block is left without an error.

    The folder must be there.  Of several writers the last to finish wins.  Raises OSError.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            # Else a machine that goes down at the wrong moment can be left with the name and no bytes.
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
