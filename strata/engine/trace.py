"""What the engine did and what state it left, one JSON line a slice or decoded row; and how two runs differ.

A room of its own because it must change nothing: it is told of what was done, and reads.  Two traces are compared
sequence by sequence, so that another interleaving alone is no difference; nor are other windows of offered tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from strata.messages import Seq

_ANOTHER: Final = '\n{"what":"engine"}\n'
"""Another engine writes from here on.  It begins on a line of its own, wherever the one before it was cut short."""


class Trace:
    """Writes to `path`, whole lines at a time, so that a run that dies leaves a trace up to its last step.

    `goes_on`: after what an engine before this one has written there, behind a line that says so.
    """

    def __init__(self, path: Path, *, goes_on: bool = False) -> None:
        self._file = path.open("a" if goes_on else "w", buffering=1, encoding="utf-8")
        if goes_on:
            self._file.write(_ANOTHER)

    def slice(
        self,
        seq: Seq,
        *,
        position: int,
        chunk: int,
        done: int,
        state: Mapping[str, str],
        token: int | None = None,
    ) -> None:
        """Slice number `done` of a chunk is complete; `token` if it was the prompt's last."""
        line = {"seq": seq, "what": "slice", "position": position, "chunk": chunk, "slice": done, "state": state}
        self._write(line if token is None else {**line, "token": token})

    def decode(self, seq: Seq, *, position: int, token: int, state: Mapping[str, str]) -> None:
        """A row of a decode step."""
        self._write({"seq": seq, "what": "decode", "position": position, "token": token, "state": state})

    def window(self, seq: Seq, *, position: int, offered: int, accepted: int) -> None:
        """Tokens were offered from the one after `position` on, and so many accepted.  Their rows follow."""
        self._write({"seq": seq, "what": "window", "position": position, "offered": offered, "accepted": accepted})

    def close(self) -> None:
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


@frozen
class _Line:
    number: int
    values: Mapping[str, Any]

    def __str__(self) -> str:
        values = self.values
        where = f"slice {values['slice']} of chunk {values['chunk']}, " if values["what"] == "slice" else "decode, "
        return f"line {self.number} ({where}position {values['position']})"


def diff(a: Path, b: Path) -> str | None:
    """The first line of the two traces that differs, in words, or None.  Raises OSError, ValueError for no trace."""
    ours, theirs = _read(a), _read(b)
    found: list[tuple[int, str]] = []
    for seq in sorted(ours.keys() | theirs.keys()):
        difference = _first_difference(ours.get(seq, []), theirs.get(seq, []))
        if difference is not None:
            place, words = difference
            found.append((place, f"sequence {seq}: {words}"))
    return min(found)[1] if found else None


def _read(path: Path) -> dict[int, list[_Line]]:
    """The lines of each sequence, in order; of one that a later engine began anew, that engine's."""
    lines: dict[int, list[_Line]] = {}
    number = 1
    *dead, last = path.read_text(encoding="utf-8").split(_ANOTHER)
    # What a dead one wrote last may be half a line.
    for text in (*(part[: part.rfind("\n") + 1] for part in dead), last):
        lines |= _read_life(path, text, number)
        number += text.count("\n") + 2
    return lines


def _read_life(path: Path, text: str, first: int) -> dict[int, list[_Line]]:
    """One engine's, whose lines are numbered from `first` on."""
    lines: dict[int, list[_Line]] = {}
    for number, line in enumerate(text.splitlines(), start=first):
        try:
            values = json.loads(line)
            named = {"seq", "what", "position"} | ({"state"} if values.get("what") != "window" else set())
            missing = named - values.keys()
        except (ValueError, AttributeError):
            raise ValueError(f"{path}: line {number} is not a trace's") from None
        if missing:
            raise ValueError(f"{path}: line {number} has no {', '.join(sorted(missing))}")
        if values["what"] != "window":
            lines.setdefault(values["seq"], []).append(_Line(number, values))
    return lines


def _first_difference(ours: list[_Line], theirs: list[_Line]) -> tuple[int, str] | None:
    """Where the two part (the earlier line number), and how."""
    for one, other in zip_longest(ours, theirs):
        if one is None:
            return other.number, f"only B goes on, at {other}"
        if other is None:
            return one.number, f"only A goes on, at {one}"
        if one.values != other.values:
            return min(one.number, other.number), f"A {one}, B {other}: {_how(one.values, other.values)}"
    return None


def _how(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Names what differs, the state's parts by their own names."""
    names = [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]
    if names != ["state"]:
        return ", ".join(f"{name} is {one.get(name)} and {other.get(name)}" for name in names if name != "state")
    mine, yours = one["state"], other["state"]
    parts = [part for part in sorted(mine.keys() | yours.keys()) if mine.get(part) != yours.get(part)]
    return f"{', '.join(parts)} of the state {'differ' if len(parts) > 1 else 'differs'}"
