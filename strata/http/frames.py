"""Counts what an HTTP/2 client sends for nothing, from the frames' heads alone.

Below the protocol, as many frames leave no event: those of unknown types, and all that name a stream which has ended.
Pure; knows no stream, no time, and not what a frame says.
"""

from __future__ import annotations

from typing import Final

MAX_IDLE_FRAMES: Final = 1000
"""HTTP/2 frames that ask for no answer (priorities, pings, settings, resets) before a client is told to calm down."""
FRAMES_PER_ANSWER: Final = 50
"""An answered request makes up for so many of them."""
RESET_FRAMES: Final = 5
"""A reset counts as so many: its request was begun for nothing."""
UPDATE_BYTES: Final = 1024
"""For so much of an answer, and for each frame of one, a client may open both its windows: the stream's, and the
connection's."""

PREFACE_BYTES: Final = 24
_HEAD_BYTES: Final = 9
_DATA, _HEADERS, _RST_STREAM, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 8, 9
_COSTS: Final = {_HEADERS: 0, _CONTINUATION: 0, _RST_STREAM: RESET_FRAMES}
"""Of frames that don't count as one."""


class Frames:
    """The frames in one direction of a connection, whose bytes come in pieces of any size."""

    def __init__(self, skip_bytes: int) -> None:
        self._skip_bytes = skip_bytes
        self._head = bytearray()

    def begun_in(self, data: bytes) -> list[tuple[int, int]]:
        """Type and length (in bytes) of the frames whose heads are whole with `data`."""
        found: list[tuple[int, int]] = []
        at = self._skip_bytes
        while at < len(data):
            taken = data[at : at + _HEAD_BYTES - len(self._head)]
            self._head += taken
            at += len(taken)
            if len(self._head) == _HEAD_BYTES:
                length = int.from_bytes(self._head[:3], "big")
                found.append((self._head[3], length))
                self._head.clear()
                at += length
        self._skip_bytes = at - len(data)
        return found


class Calm:
    """The account of one client.  What it sends is counted before it is parsed, and made up for by what comes of it."""

    def __init__(self) -> None:
        self._heard, self._sent = Frames(PREFACE_BYTES), Frames(0)
        self._idle = 0
        self._updates_due = 0

    def __repr__(self) -> str:
        return f"<Calm {self._idle} idle frames, {self._updates_due} updates due>"

    @property
    def lost(self) -> bool:
        """Whether the client has sent too much for nothing."""
        return self._idle > MAX_IDLE_FRAMES

    def hear(self, data: bytes) -> int:
        """Count what came; returns the number of frames."""
        heard = self._heard.begun_in(data)
        for kind, _ in heard:
            if kind == _WINDOW_UPDATE and self._updates_due:
                self._updates_due -= 1
            else:
                # To open streams and reset them is the cheapest way to keep a server busy (CVE-2023-44487).
                self._idle += _COSTS.get(kind, 1)
        return len(heard)

    def send(self, data: bytes) -> None:
        """Each part of an answer warrants an update of both windows, however late."""
        for kind, length in self._sent.begun_in(data):
            if kind == _DATA:
                self._updates_due += 2 * (1 + length // UPDATE_BYTES)

    def used(self) -> None:
        """One of the frames carried a part of a body that somebody waits for."""
        self._idle = max(0, self._idle - 1)

    def answered(self) -> None:
        """A whole request came of them."""
        self._idle = max(0, self._idle - FRAMES_PER_ANSWER)
