"""What each operation of a model takes on a device: products and a norm of its layers, attention, logits.

A room of its own because it drives a device's operations one at a time, and no model: a step is many of them, and
which of them is slow can't be told from the whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from attrs import frozen

from strata.bench.report import Column, Report
from strata.bench.roofs import Roofs, above
from strata.config import Settings
from strata.draws import Draw
from strata.engine.sampling import draw_of
from strata.messages import Sampling
from strata.models.block import Block, Parts, Room
from strata.models.config import RawTensor
from strata.models.families import family_of
from strata.models.file import ModelFile
from strata.models.ops import CacheShape, Kernels, Ops, Sight

ROWS: Final = (1, 8)
"""That come alone; those that are read together are as many as a slice has."""
CONTEXTS: Final = (1024, 4096)
"""Tokens that attention looks back at."""
DRAWN: Final = {
    "likeliest token": Sampling(temperature=0.0),
    "draw": Sampling(),
    "draw, top_p 0.95": Sampling(top_p=0.95),
}
SAMPLE_S: Final = 0.02
"""About how long an operation is repeated for a sample; at least once."""
_PAGE: Final = 64

COLUMNS: Final = (
    Column("what", "what"),
    Column("context", "tokens before"),
    Column("rows", "rows"),
    Column("us", "microseconds", ",.1f", drawn=True),
    Column("gb_per_s", "GB/s", ",.2f"),
    Column("gflop_per_s", "GFLOP/s", ",.2f"),
    Column("of_roof", "% of the roof", ",.1f"),
    Column("bound", "bound by", "s"),
)


def operations(path: Path, settings: Settings, repeats: int, say: Callable[[str], None]) -> Report:
    """Medians of so many samples.  Raises ModelError, ConfigError, DeviceMissing."""
    from strata.engine.from_file import open_device
    from strata.models.file import open_model

    file, ops = open_model(path), open_device(settings.engine)
    try:
        bench = _Bench(file, ops, settings.engine.context or file.config.context, repeats)
        say("what the device does at most")
        rows = [*bench.roofs()]
        for job in bench.jobs():
            say(str(job))
            rows.append(bench.row(job))
        return Report(
            what="operations",
            model=f"{file.name} ({file.quantisation})",
            device=ops.device,
            repeats=repeats,
            columns=COLUMNS,
            rows=tuple(rows),
            left_out=tuple(bench.left_out),
            notes=above(rows),
        )
    finally:
        ops.close()


@frozen
class Job:
    """What one row of the table is about."""

    what: str
    context: int
    rows: int
    nbytes: int
    """That must be read at least: weights as the file holds them, or keys and values."""
    flops: int
    do: Callable[[int], None]
    """The n-th time."""

    def __str__(self) -> str:
        after = f" after {self.context:,} tokens" if self.context else ""
        return f"{self.what}{after} (rows: {self.rows})"


class _Bench:
    """The layers' weights by turns: one layer's alone might all lie in a cache."""

    def __init__(self, file: ModelFile, ops: Ops, context: int, repeats: int) -> None:
        self._config = config = file.config
        self._tensors = file.tensors
        self._ops = ops
        self._repeats = repeats
        self._context = context
        block = family_of(config.architecture).block
        self._layers = [block.load(Parts(layer, config, self._tensors, ops)) for layer in range(config.layers)]
        self._embedding = ops.matrix([self._tensors["token_embd.weight"]])
        self._head = self._embedding if config.tied else ops.matrix([self._tensors["output.weight"]])
        self._together = ops.slice_tiles(0) * ops.tile
        most = max(self._together, *ROWS)
        self._room = Room.of(ops, config, most)
        self._residual, self._made = ops.empty(most, config.hidden), ops.empty(most, config.hidden)
        self._logits = ops.empty(max(ROWS), config.vocab_size)
        self._roofs = Roofs(ops.roof())
        self.left_out: list[str] = []

    def roofs(self) -> Iterator[Mapping[str, Any]]:
        """To be measured before all else."""
        yield from self._roofs.measure(self._seconds)
        self.left_out += self._roofs.left_out

    def row(self, job: Job) -> Mapping[str, Any]:
        samples = self._seconds(job.do)
        taken = median(samples)
        bound, least = self._roofs.bound(job.nbytes, job.flops, together=job.rows == self._together)
        return {
            "what": job.what,
            "context": job.context,
            "rows": job.rows,
            "us": 1e6 * taken,
            "gb_per_s": job.nbytes / taken / 1e9,
            "gflop_per_s": job.flops / taken / 1e9,
            "of_roof": 100 * least / taken,
            "bound": bound,
            "samples": [1e6 * one for one in samples],
        }

    def _seconds(self, do: Callable[[int], None]) -> list[float]:
        """Of one time, again and again; the first of all loads kernels and is not counted."""
        self._many(do, 1)
        times = max(1, round(SAMPLE_S / self._many(do, 1)))
        return [self._many(do, times) / times for _ in range(self._repeats)]

    def _many(self, do: Callable[[int], None], times: int) -> float:
        began = time.perf_counter()
        for at in range(times):
            do(at)
        self._ops.numbers(self._residual[:1])  # a card has done all of them before it gives an answer
        return time.perf_counter() - began

    # -- what there is to do ------------------------------------------------------------------------------------------

    def jobs(self) -> Iterator[Job]:
        """Each finds what those before it left: numbers of usual size."""
        for rows in (*ROWS, self._together):
            tokens = np.arange(rows, dtype=np.int64) % self._config.vocab_size
            self._ops.embed(self._embedding, tokens, 1.0, self._residual[:rows])
            yield from self._of_layers(self._ops.rows if rows in ROWS else self._ops.tiles, rows)
        for rows in ROWS:
            yield self._of_logits(rows)
            yield from self._of_drawing(rows)
        for context in CONTEXTS:
            if context + self._together > self._context:
                self.left_out.append(f"attention after {context:,} tokens: the context is {self._context:,}")
            else:
                yield from self._of_attention(context)

    def _of_layers(self, kernels: Kernels, rows: int) -> Iterator[Job]:
        room, residual, made = self._room.first(rows), self._residual[:rows], self._made[:rows]
        eps, hidden = self._config.rms_eps, self._config.hidden

        def job(what: str, names: Sequence[str], do: Callable[[Block], None]) -> Job:
            weights = [self._tensors[f"blk.0.{name}.weight"] for name in names]
            return _product(what, rows, weights, lambda n: do(self._layers[n % len(self._layers)]))

        yield Job(
            "norm",
            0,
            rows,
            nbytes=4 * rows * hidden,
            flops=4 * rows * hidden,
            do=lambda n: kernels.norm(residual, self._layers[n % len(self._layers)].attention_norm, eps, room.normed),
        )
        yield job(
            "queries, keys, values",
            ["attn_q", "attn_k", "attn_v"],
            lambda layer: kernels.linear(room.normed, layer.queries_keys_values, room.queries_keys_values),
        )
        # Queries have the size of what is attended, and are there.
        yield job("output", ["attn_output"], lambda layer: kernels.linear(room.queries, layer.output, made))
        yield job(
            "gate and up",
            ["ffn_gate", "ffn_up"],
            lambda layer: kernels.gated(room.normed, layer.gate_and_up, room.activated),
        )
        yield job("down", ["ffn_down"], lambda layer: kernels.linear(room.activated, layer.down, made))

    def _of_logits(self, rows: int) -> Job:
        normed, logits = self._room.normed[:rows], self._logits[:rows]
        name = "token_embd.weight" if self._config.tied else "output.weight"
        return _product(
            "logits", rows, [self._tensors[name]], lambda _n: self._ops.rows.linear(normed, self._head, logits)
        )

    def _of_drawing(self, rows: int) -> Iterator[Job]:
        """Of the logits that are there; where the device draws, and doesn't leave it to the host."""
        logits, nbytes = self._logits[:rows], 4 * rows * self._config.vocab_size
        for what, sampling in DRAWN.items():
            draws = [draw_of(sampling)] * rows
            if None in self._ops.draw(logits, draws, range(rows)):
                self.left_out.append(f"{what} (rows: {rows}): the host draws")
                continue
            yield Job(what, 0, rows, nbytes, flops=0, do=partial(self._draw, logits, draws))

    def _draw(self, logits: Any, draws: Sequence[Draw], n: int) -> None:
        """Each time at other positions: tokens are drawn by other bits."""
        self._ops.draw(logits, draws, range(n * len(draws), (n + 1) * len(draws)))

    def _of_attention(self, context: int) -> Iterator[Job]:
        """Of one layer, each row in pages of its own; what is stored there makes no difference to the time."""
        config, ops = self._config, self._ops
        pages = -(-(context + self._together) // _PAGE)
        cache = ops.cache(CacheShape(1, pages * max(ROWS), _PAGE, config.kv_heads, config.head_dim))
        angles = ops.rotation(context + self._together, config.rope_dim, config.rope.theta)
        sight = Sight(0, angles, config.head_dim**-0.5)
        for rows in ROWS:
            places = [(range(row * pages, (row + 1) * pages), context) for row in range(rows)]
            yield self._of_lone_rows(sight, cache, places)
        yield self._of_a_slice(sight, cache, range(pages), context)

    def _of_lone_rows(self, sight: Sight, cache: Any, places: Sequence[tuple[Sequence[int], int]]) -> Job:
        rows, context = len(places), places[0][1]
        room, seen = self._room.first(rows), rows * (context + 1)
        return self._attending(
            rows,
            context,
            read=seen,
            weighed=seen,
            do=lambda _n: self._ops.attend_rows(
                room.queries, room.keys, room.values, sight, cache, places, room.attended
            ),
        )

    def _of_a_slice(self, sight: Sight, cache: Any, pages: Sequence[int], context: int) -> Job:
        room, real = self._room.first(self._together), range(context, context + self._together)
        return self._attending(
            self._together,
            context,
            read=real.stop,
            weighed=sum(position + 1 for position in real),
            do=lambda _n: self._ops.attend_tiles(
                room.queries, room.keys, room.values, sight, cache, pages, context, real, room.attended
            ),
        )

    def _attending(self, rows: int, context: int, *, read: int, weighed: int, do: Callable[[int], None]) -> Job:
        """Of so many rows, that read so many positions' keys and values and weigh so many."""
        config = self._config
        nbytes = read * self._ops.bytes_of_page(CacheShape(1, 1, 1, config.kv_heads, config.head_dim))
        return Job("attention", context, rows, nbytes, flops=4 * weighed * config.heads * config.head_dim, do=do)


def _product(what: str, rows: int, weights: Sequence[RawTensor], do: Callable[[int], None]) -> Job:
    """Of so many rows with all of these."""
    numbers = sum(tensor.shape[0] * tensor.shape[1] for tensor in weights)
    nbytes = sum(int(tensor.data.nbytes) for tensor in weights)
    return Job(what, 0, rows, nbytes=nbytes, flops=2 * rows * numbers, do=do)
