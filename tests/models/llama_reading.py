"""A plain loop that drives a model, with no engine: reads a prompt in chunks, decodes, digests its state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from attrs import field, mutable

from strata.models.architecture import DecodeRow, Model


@mutable
class Reader:
    """One sequence: its pages, how far it is, and the logits after its last token."""

    model: Model
    pages: list[int]
    position: int = 0
    logits: np.ndarray = field(factory=lambda: np.empty(0, np.float32))

    def read(self, tokens: Sequence[int], *, chunk: int = 512, between: Callable[[], None] = lambda: None) -> Reader:
        """All of them, on the grid of chunks; `between` is called wherever another could run."""
        end = self.position + len(tokens)
        workspace = self.model.workspace(chunk)
        rest = list(tokens)
        while self.position < end:
            count = min(chunk - self.position % chunk, end - self.position)
            self._read_chunk(np.array(rest[:count]), workspace, between)
            rest = rest[count:]
        return self

    def _read_chunk(self, tokens: np.ndarray, workspace: object, between: Callable[[], None]) -> None:
        slices = self.model.read(self, self.position, tokens, workspace)
        expected = self.model.slices(len(tokens), self.position)
        for _ in range(expected - 1):
            next(slices)
            between()
        try:
            next(slices)
        except StopIteration as stop:
            self.logits = stop.value
        else:
            raise AssertionError(f"it takes more than the {expected} slices that were announced")
        self.position += len(tokens)

    def decode(self, token: int) -> Reader:
        [self.logits] = self.model.decode([self.row(token)])
        self.position += 1
        return self

    def row(self, token: int) -> DecodeRow:
        return DecodeRow(self, token, self.position)

    def greedy(self, count: int) -> list[int]:
        """The likeliest tokens, each fed back but the last."""
        tokens = [int(self.logits.argmax())]
        while len(tokens) < count:
            self.decode(tokens[-1])
            tokens.append(int(self.logits.argmax()))
        return tokens

    def bits(self) -> tuple[str, bytes]:
        """All that it is now.  To be taken at once: the next reader may be given the same pages."""
        return self.digest(), self.logits.tobytes()

    def digest(self, length: int | None = None) -> str:
        """Of the model's state for the positions below `length`; None: for all."""
        digest = hashlib.sha256()
        for name, pieces in self.model.state_parts(self, self.position if length is None else length).items():
            digest.update(name.encode())
            for piece in pieces:
                digest.update(piece)
        return digest.hexdigest()
