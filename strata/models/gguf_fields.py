"""What a GGUF file's metadata states, doubted: a missing or wrong value is a ModelError that names its key.

Knows how the `gguf` library shows a field, and GGUF's keys for windows and scaled positions; no file and no family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from attrs import frozen
from gguf import GGUFValueType, ReaderField

from strata.errors import ModelError
from strata.models import rope
from strata.models.config import MAX_SIZE, Rope

_T = TypeVar("_T")


@frozen
class Fields:
    """Typed access to the metadata.  A missing or wrong value is a ModelError that names its key."""

    fields: Mapping[str, ReaderField]

    def text(self, key: str) -> str:
        return self._value(key, str)

    def flag(self, key: str, default: bool) -> bool:
        return self._value(key, bool, default)

    def size(self, key: str, default: int | None = None) -> int:
        """A number of things: at least 1."""
        value = self._value(key, int, default)
        if not 0 < value < MAX_SIZE:
            raise ModelError(f"its {key} is {value}, which cannot be; fetch it again or use another file")
        return value

    def count(self, key: str) -> int:
        """A number of things that may be none, as where the file doesn't say."""
        return self.size(key) if self._value(key, int, 0) else 0

    def positive(self, key: str, default: float | None = None) -> float:
        value = self._value(key, float, default)
        if not (math.isfinite(value) and value > 0):
            raise ModelError(f"its {key} is {value}, which cannot be; fetch it again or use another file")
        return value

    def array(self, key: str, kind: type[_T]) -> list[_T]:
        """Text, whole numbers or flags."""
        value = self._value(key, list)
        if not all(isinstance(item, kind) for item in value):
            raise ModelError(f"its {key} has items of a wrong type; fetch it again or use another file")
        return value

    def token(self, key: str, vocab_size: int) -> int | None:
        """A token's id, None if the file names none."""
        if key not in self.fields:
            return None
        value = self._value(key, int)
        if not 0 <= value < vocab_size:
            raise ModelError(f"its {key} is {value}, outside the vocabulary; fetch it again or use another file")
        return value

    def windows(self, own: str, layers: int, every: int = 0) -> tuple[int, ...]:
        """One window for the layers of the pattern, or for all but each `every`-th; 0: for all."""
        window, key = self.count(f"{own}attention.sliding_window"), f"{own}attention.sliding_window_pattern"
        if window == 0:
            return ()
        field = self.fields.get(key)
        if field is None or field.types[0] != GGUFValueType.ARRAY:
            every = every if field is None else self.count(key)
            return tuple(window if every == 0 or (layer + 1) % every else 0 for layer in range(layers))
        if len(stated := self.array(key, bool)) != layers:
            raise ModelError(f"its {key} has {len(stated)} flags for {layers} layers; use another file")
        return tuple(window if windowed else 0 for windowed in stated)

    def rope(self, own: str, turned: int, context: int, factors: tuple[float, ...] = ()) -> Rope:
        """`factors`: what each pair is slowed down by besides, as a tensor has it."""
        theta = self.positive(f"{own}rope.freq_base", 10_000.0)
        key = f"{own}rope.scaling.type"
        kind = self.text(key) if key in self.fields else "none"
        if kind == "yarn" and not factors:
            return self._yarn(own, theta, turned, context)
        if kind not in ("none", "linear"):
            raise ModelError(f"it uses {kind} scaled positions ({key}), which is not supported; use another file")
        factor = self.positive(f"{own}rope.scaling.factor", self.positive(f"{own}rope.scale_linear", 1.0))
        if factors:
            return Rope(theta, tuple(factor * one for one in factors))
        return rope.linear(theta, turned, factor)

    def _yarn(self, own: str, theta: float, turned: int, context: int) -> Rope:
        """The paper's, but for what its frequencies and its attention may be weighed by."""
        scaling = f"{own}rope.scaling."
        for name, usual in (("yarn_ext_factor", 1.0), ("yarn_attn_factor", 1.0), ("yarn_log_multiplier", 0.0)):
            if self._value(scaling + name, float, usual) != usual:
                raise ModelError(
                    f"it uses a variant of YaRN ({scaling}{name}), which is not supported; use another file"
                )
        factor = self.positive(f"{scaling}factor")
        return rope.yarn(
            theta,
            turned,
            factor=factor,
            trained=self.size(f"{scaling}original_context_length", context),
            fast=self.positive(f"{scaling}yarn_beta_fast", 32.0),
            slow=self.positive(f"{scaling}yarn_beta_slow", 1.0),
            attention=rope.yarn_attention(factor) * self.positive(f"{scaling}attn_factor", 1.0),
        )

    def _value(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        field = self.fields.get(key)
        if field is None:
            if default is not None:
                return default
            raise ModelError(f"it does not state {key}; fetch it again or use another file")
        try:
            value = contents(field)
        except (ValueError, IndexError, TypeError) as error:
            raise ModelError(f"its {key} is damaged ({one_line(error)}); fetch it again") from error
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ModelError(f"its {key} is {value!r:.60}, which is no {kind.__name__}; use another file")
        return value


def contents(field: ReaderField) -> Any:
    """As the library says; but it gives None for an empty array."""
    if field.types[0] == GGUFValueType.ARRAY and not field.data:
        return []
    return field.contents()


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
