"""A model that thinks nothing, but keeps its state as a real one does: in pages, layer by layer, slice by slice.

What stands at a position is a hash of all tokens up to it, and is computed from what the pages hold of the position
before: a page that was lost, shared or written by another gives other tokens.  A token of the vocabulary can be made
to break it.  Time passes only where it says so, on the stopwatch that it is given.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence

import numpy as np
from attrs import define
from numpy.typing import NDArray

from strata.errors import DeviceFault
from strata.models.architecture import DecodeRow, Logits, SequenceView
from strata.models.config import ModelConfig, Rope

LAYERS = 3
VOCAB = 64
END = 2
"""The end token."""
BREAKS_READ, BREAKS_DECODE, GIVES_NAN, LOSES_DEVICE = 60, 61, 62, 63
"""Tokens that do what their names say: raise when read or decoded, give logits that are not finite, ..."""

_PRIME = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


@define
class Stopwatch:
    """A clock that moves when it is told to (seconds)."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class ToyModel:
    def __init__(
        self, watch: Stopwatch | None = None, *, slice_s: float = 0.01, step_s: float = 0.01, context: int = 4096
    ) -> None:
        self.watch = watch or Stopwatch()
        self.slice_s = slice_s
        self.step_s = step_s
        self.device = "toy"
        self.weight_bytes = 0
        self.config = ModelConfig(
            architecture="toy",
            name="toy",
            vocab_size=VOCAB,
            layers=LAYERS,
            hidden=1,
            heads=1,
            kv_heads=1,
            head_dim=1,
            feed_forward=1,
            context=context,
            rms_eps=1e-5,
            rope=Rope(1e4),
            rope_dim=1,
            tied=True,
            eos_ids=frozenset({END}),
            bos_id=None,
            add_bos=False,
        )
        self.closed = False
        self.pages_written: set[int] = set()
        """Since somebody last looked."""
        self.open_reads = 0
        """Reads whose generator has begun and neither ended nor been closed."""
        self._reads: list[Generator[None, None, Logits]] = []
        """Kept, so that nothing but a close ends them."""
        self.page_s = 0.001
        """For a page that is moved."""
        self._page_tokens = 0
        self._slots = np.zeros((0, 0, LAYERS), dtype=np.uint64)
        self._kv = np.zeros((0, LAYERS), dtype=np.uint64)

    # -- the model protocol -----------------------------------------------------------------------------------------

    def bytes_per_page(self, page_tokens: int) -> int:
        return page_tokens * LAYERS * 8

    def bytes_per_workspace(self, chunk_tokens: int) -> int:
        return 8 * chunk_tokens

    def bytes_beside_pages(self, context: int, rows: int) -> int:
        return context + 16 * rows

    def allocate(self, pages: int, page_tokens: int, *, context: int, rows: int, slots: int = 0) -> None:
        del context, rows
        self._page_tokens = page_tokens
        self._slots = np.full((slots, page_tokens, LAYERS), 0xDEAD, dtype=np.uint64)
        # Not zeros: what was never written must not be what anybody counts on.
        self._kv = np.full((pages * page_tokens, LAYERS), 0xDEAD, dtype=np.uint64)

    def copy_out(self, page: int, slot: int) -> None:
        self.watch.now += self.page_s
        self._slots[slot] = self._page(page)

    def copy_in(self, slot: int, page: int) -> None:
        self.watch.now += self.page_s
        self._page(page)[...] = self._slots[slot]
        self.pages_written.add(page)

    def _page(self, page: int) -> NDArray[np.uint64]:
        return self._kv[page * self._page_tokens : (page + 1) * self._page_tokens]

    def workspace(self, chunk_tokens: int) -> list[int]:
        return [0xDEAD] * chunk_tokens

    def slices(self, *_: int) -> int:
        return LAYERS

    def read(
        self, handle: SequenceView, start: int, tokens: NDArray[np.int64], workspace: list[int]
    ) -> Generator[None, None, Logits]:
        self._reads.append(self._read(handle, start, tokens, workspace))
        return self._reads[-1]

    def decode(self, rows: Sequence[DecodeRow]) -> list[Logits]:
        self.watch.now += self.step_s
        for row in rows:
            self._check(np.asarray([row.token]), BREAKS_DECODE)
        return [self._decode(row) for row in rows]

    def state_parts(self, handle: SequenceView, length: int) -> Mapping[str, Iterable[memoryview]]:
        both = np.concatenate([self._kv, self._slots.reshape(-1, LAYERS)])
        where = [self._place(handle, position) for position in range(length)]
        return {"kv": [memoryview(np.ascontiguousarray(both[where]))]}

    def close(self) -> None:
        self.closed = True

    # -- inside -----------------------------------------------------------------------------------------------------

    def _read(
        self, handle: SequenceView, start: int, tokens: NDArray[np.int64], workspace: list[int]
    ) -> Generator[None, None, Logits]:
        self.open_reads += 1
        try:
            self._check(tokens, BREAKS_READ)
            workspace[: len(tokens)] = tokens.tolist()
            for layer in range(LAYERS):
                if layer:
                    yield
                self.watch.now += self.slice_s
                for i in range(len(tokens)):
                    workspace[i] = self._write(handle, layer, start + i, workspace[i])
            return self._logits(workspace[len(tokens) - 1], int(tokens[-1]))
        finally:
            self.open_reads -= 1

    def _decode(self, row: DecodeRow) -> Logits:
        value = row.token
        for layer in range(LAYERS):
            value = self._write(row.handle, layer, row.position, value)
        return self._logits(value, row.token)

    def _write(self, handle: SequenceView, layer: int, position: int, below: int) -> int:
        """What stands at the position in this layer: a hash of the layer below and of the position before."""
        before = int(self._kv[self._place(handle, position - 1), layer]) if position else layer
        value = ((before ^ below) * _PRIME + position) & _MASK
        value ^= value >> 29
        place = self._place(handle, position)
        self._kv[place, layer] = value
        self.pages_written.add(place // self._page_tokens)
        return value

    def _place(self, handle: SequenceView, position: int) -> int:
        page, offset = divmod(position, self._page_tokens)
        return handle.pages[page] * self._page_tokens + offset

    def _logits(self, value: int, token: int) -> Logits:
        if token == GIVES_NAN:
            return np.full(VOCAB, np.nan, dtype=np.float32)
        logits = 3 * np.random.Generator(np.random.Philox(key=value)).standard_normal(VOCAB, dtype=np.float32)
        # Those that break things come only when a bias asks for them.
        logits[BREAKS_READ:] = -50.0
        return logits

    def _check(self, tokens: NDArray[np.int64], breaks: int) -> None:
        if LOSES_DEVICE in tokens:
            raise DeviceFault("the toy is out of order")
        if breaks in tokens:
            raise ValueError("a toy can't take this")
