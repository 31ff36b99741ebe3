"""Text that comes in pieces, broken between words where a terminal's line ends.  Knows no terminal and no model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len

TAB: Final = 8
"""Columns, at most."""
_PARTS: Final = re.compile(r"\n|[^\S\n]+|\S+")


class Lines:
    """A word is shown when its end has come, so that it is known whether it fits; what was shown is never changed."""

    def __init__(self, width: int | None) -> None:
        """`width`: columns; None: nothing is broken or held back."""
        self._width = width
        self._column = 0
        self._gap = ""
        """Between what was shown and the word; a line's end may take its place."""
        self._word = ""

    def take(self, piece: str) -> str:
        """What can be shown now."""
        return piece if self._width is None else "".join(self._shown(piece, self._width))

    def rest(self) -> str:
        """What was held back, at the text's end."""
        return "" if self._width is None else self._placed(self._width)

    def _shown(self, piece: str, width: int) -> Iterator[str]:
        for part in _PARTS.findall(piece):
            if not part.isspace():
                self._word += part
                # No line is long enough for it: the terminal breaks it anywhere.
                if _columns(self._word) > width:
                    yield self._placed(width)
                continue
            yield self._placed(width)
            if part == "\n":
                self._column, self._gap = 0, ""
                yield part
            else:
                self._gap += part

    def _placed(self, width: int) -> str:
        word, gap, self._word = self._word, self._gap, ""
        if not word:
            return ""
        self._gap = ""
        length = _columns(word)
        if self._column and self._column + _columns(gap) + length > width:
            self._column = length
            return f"\n{word}"
        self._column += _columns(gap) + length
        return gap + word


def _columns(text: str) -> int:
    return cell_len(text) + TAB * text.count("\t")
