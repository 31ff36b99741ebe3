"""What the engine asks of any model: memory by pages, a read in slices, a decode step, and its state laid open.

The engine drives these and knows no layer; an architecture implements them over `Ops` and knows no request, no step and
no clock.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from strata.draws import Draw
from strata.models.config import ModelConfig

Logits: TypeAlias = NDArray[np.float32]
"""One value for each token of the vocabulary, before softmax."""


Answer: TypeAlias = Logits | int
"""What a row's next token is chosen from; or that token, where its row said how to draw it."""

Workspace: TypeAlias = Any
"""The memory of one half-done chunk.  Opaque: made by a model, given back to the same model's `read`."""


class SequenceView(Protocol):
    """What a model may know of a sequence.  Looked at anew after every resume, because a swap may have moved pages."""

    @property
    def pages(self) -> Sequence[int]:
        """The pages that it may fill, in order of position.

        One in slot n of the arena has the number `pages` (of `allocate`) + n; nothing is read or decoded then.
        """
        ...


@frozen
class DecodeRow:
    """One row of a decode step: `token` stands at `position`, and the logits after it are asked for."""

    handle: SequenceView
    token: int
    position: int
    draw: Draw | None = None
    """How the token at `position` + 1 is drawn, where the logits are wanted for nothing else.

    A model may give them all the same.
    """


class Model(Protocol):
    """A model with its weights loaded.

    A row's bits (keys, values and logits) depend on its sequence's tokens up to its own position alone: not on the end
    of the chunk or of the prompt, on where a chunk was cut, on the pages' numbers, on other rows or on the threads.
    """

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> str:
        """For people: `cpu (numpy, 2 threads)`."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        ...

    def bytes_per_page(self, page_tokens: int) -> int:
        """Memory that a page of so many tokens takes, over all layers; a slot of the arena takes as much."""
        ...

    def bytes_per_workspace(self, chunk_tokens: int) -> int:
        """Memory that one `workspace` takes."""
        ...

    def bytes_beside_pages(self, context: int, rows: int) -> int:
        """Memory that `allocate` and steps take for so many positions and rows, without the pages."""
        ...

    def allocate(self, pages: int, page_tokens: int, *, context: int, rows: int, slots: int = 0) -> None:
        """Take the memory of all pages, and of all slots of the host arena, at once.  Called once, before all else.

        Nothing is read or decoded from position `context` on.  A step of more than `rows` is computed in several goes.
        """
        ...

    def copy_out(self, page: int, slot: int) -> None:
        """Copy a whole page, over all layers, to a slot of the arena.  Done when it returns."""
        ...

    def copy_in(self, slot: int, page: int) -> None:
        """Copy a slot of the arena to a page.  Done when it returns."""
        ...

    def workspace(self, chunk_tokens: int) -> Workspace:
        """Room for one half-done chunk of at most so many tokens, anywhere in the context."""
        ...

    def slices(self, tokens: int, start: int) -> int:
        """How many slices a chunk of `tokens` (at least 1) from position `start` takes; at least 1."""
        ...

    def read(
        self, handle: SequenceView, start: int, tokens: NDArray[np.int64], workspace: Workspace
    ) -> Generator[None, None, Logits]:
        """Read a chunk.  Yields between two slices, so `slices() - 1` times; returns the logits after its last token.

        Keys and values are written at start .. start + len(tokens) - 1, and all of the positions before must be there.
        Across a yield everything lives in `workspace`; between two slices any other read or decode may run, each read
        with a workspace of its own.  May be closed at any yield.
        """
        ...

    def decode(self, rows: Sequence[DecodeRow]) -> Sequence[Answer]:
        """One step of several sequences: writes each row's keys and values at its position; logits in order of rows.

        Several rows may be of one sequence, at positions that follow each other, in order: each takes in those before
        it, and has the bits that it has when they come one by one.
        """
        ...

    def state_parts(self, handle: SequenceView, length: int) -> Mapping[str, Iterable[memoryview]]:
        """The bytes of every part of the model's own state for positions below `length`, by name, for fingerprints.

        Equal states give equal bytes, whatever pages or slots they lie in.
        """
        ...

    def close(self) -> None:
        """End the threads that compute.  Nothing else may be called afterwards; a second close does nothing."""
        ...
