"""What work costs: seconds of a slice and of a decode step.  A few numbers, and no engine.

Every time is a whole number of ticks of 2**-20 s.  Sums of such numbers are exact in floating point, so that many
slices taken at once end at the same instant as the same slices taken one by one.
"""

from __future__ import annotations

from bisect import bisect
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec

from strata.errors import ConfigError

TICKS: Final = 2**20
"""A second has so many."""
CONTEXT_SPAN: Final = 256
"""A row's context counts as the middle of the span that it stands in (tokens): for so long its steps cost the same."""

_Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=3600)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


def in_ticks(seconds: float) -> float:
    """The nearest time that is whole ticks (seconds)."""
    return round(seconds * TICKS) / TICKS


class CostModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chunk is cut into `layers` slices for each `slice_tokens` of its rows; rows are computed in whole tiles."""

    measured_on: str
    """For people."""
    layers: _Count
    slice_tokens: _Count
    tile_tokens: _Count
    slice_s: _Seconds
    """Of every slice."""
    slice_row_s: _Seconds
    slice_row_position_s: _Seconds
    """Of every row of a slice, for each token before it."""
    step_s: Annotated[dict[_Count, _Seconds], msgspec.Meta(min_length=1)]
    """Of a decode step of so many rows; others are on the line through the two next to them."""
    step_row_position_s: _Seconds
    """Of every row of a step, for each token before it."""

    def rows(self, tokens: int) -> int:
        """What is computed for so many tokens: whole tiles."""
        return -(-tokens // self.tile_tokens) * self.tile_tokens

    def slices(self, tokens: int) -> int:
        """Of a chunk of so many tokens."""
        return self.layers * -(-self.rows(tokens) // self.slice_tokens)

    def slice_seconds(self, tokens: int, start: int) -> float:
        """Of each slice of a chunk of so many tokens from position `start`: all of its slices count alike."""
        rows = self.rows(tokens) * self.layers / self.slices(tokens)
        position = start + tokens / 2
        return _at_least_a_tick(self.slice_s + rows * (self.slice_row_s + position * self.slice_row_position_s))

    def step_seconds(self, rows: int, spans: int) -> float:
        """Of a decode step: how many rows, and the sum of the numbers of the spans that they stand in (from 0)."""
        positions = (spans + rows / 2) * CONTEXT_SPAN
        return _at_least_a_tick(self._rows_seconds(rows) + positions * self.step_row_position_s)

    def _rows_seconds(self, rows: int) -> float:
        """Of a step's rows, with nothing before them."""
        known = self.step_s
        if (seconds := known.get(rows)) is not None:
            return seconds
        if len(known) == 1:
            return min(known.values())
        counts = sorted(known)
        at = min(max(1, bisect(counts, rows)), len(counts) - 1)
        few, more = counts[at - 1], counts[at]
        return known[few] + (rows - few) * (known[more] - known[few]) / (more - few)

    def read_seconds(self, prompt: int, chunk_tokens: int) -> float:
        """Of a whole prompt, with nobody beside it."""
        starts = range(0, prompt, chunk_tokens)
        ends = [min(prompt, start + chunk_tokens) for start in starts]
        return sum(
            self.slices(end - start) * self.slice_seconds(end - start, start)
            for start, end in zip(starts, ends, strict=True)
        )

    def write_seconds(self, prompt: int, answer: int) -> float:
        """Of an answer, alone.  Its first token comes with the prompt's last slice."""
        seconds, position, end = 0.0, prompt + 1, prompt + answer
        while position < end:
            span = position // CONTEXT_SPAN
            stop = min(end, (span + 1) * CONTEXT_SPAN)
            seconds += (stop - position) * self.step_seconds(1, span)
            position = stop
        return seconds


def _at_least_a_tick(seconds: float) -> float:
    return max(1 / TICKS, in_ticks(seconds))


def laptop() -> CostModel:
    """The default model on two cores of a laptop-sized machine; `strata simulate --calibrate` measures another."""
    return msgspec.json.decode(files("strata.simulate").joinpath("laptop.json").read_bytes(), type=CostModel)


def read_cost(path: Path) -> CostModel:
    """Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=CostModel)
    except OSError as problem:
        raise ConfigError("model_cost", f"{path} can't be read ({problem.strerror or problem})") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise ConfigError("model_cost", f"{path}: {problem}") from None


def write_cost(path: Path, cost: CostModel) -> None:
    """Raises ConfigError if the file can't be written."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(cost), indent=2) + b"\n")
    except OSError as problem:
        raise ConfigError("out", f"{path} can't be written ({problem.strerror or problem})") from None
