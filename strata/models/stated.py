"""What a checkpoint's JSON states, doubted: a missing or wrong value is a ModelError that names it.

Knows the names that the transformers library gives to sizes, windows and scaled positions
(https://huggingface.co/docs/transformers/internal/rope_utils); no file and no family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen

from strata.errors import ModelError
from strata.models import rope
from strata.models.config import MAX_SIZE, Rope

CONFIG: Final = "config.json"

_WINDOWED, _WHOLE = "sliding_attention", "full_attention"
"""Kinds of layers."""


@frozen
class Stated:
    """Typed access to a JSON object.  A missing or wrong value is a ModelError that names it."""

    values: Mapping[str, Any]

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str):
            raise ModelError(f"its {CONFIG} has no text for {key}; fetch it again or use another")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        return value if isinstance(value, bool) else default

    def size(self, key: str, default: int | None = None) -> int:
        """A number of things: at least 1."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < MAX_SIZE:
            raise ModelError(f"its {key} is {value!r:.60}, which cannot be; fetch it again or use another")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not (math.isfinite(value) and value > 0):
            raise ModelError(f"its {key} is {value!r:.60}, which cannot be; fetch it again or use another")
        return float(value)

    def ids(self, key: str) -> frozenset[int]:
        """A token, or several, or none."""
        value = self.values.get(key)
        several = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in several):
            raise ModelError(f"its {key} is {value!r:.60}, which names no token; fetch it again or use another")
        return frozenset(several)

    def part(self, key: str) -> Stated:
        value = self.values.get(key)
        return Stated(value if isinstance(value, Mapping) else {})

    def and_part(self, key: str) -> Stated:
        """With what is stated in a part, which goes before."""
        return Stated({**self.values, **self.part(key).values})

    def windows(self, layers: int, *, in_use: bool = True, every: int = 0) -> tuple[int, ...]:
        """One window for the layers that are named; else from a layer on, and not for each `every`-th; else for all.

        `in_use`: whether it is where nothing says.
        """
        if self.values.get("sliding_window") is None or not self.flag("use_sliding_window", in_use):
            return ()
        window, kinds = self.size("sliding_window"), self.values.get("layer_types")
        if kinds is None:
            first = self.values.get("max_window_layers") and self.size("max_window_layers")
            return tuple(
                window if layer >= (first or 0) and (not every or (layer + 1) % every) else 0 for layer in range(layers)
            )
        if (
            not isinstance(kinds, list)
            or len(kinds) != layers
            or not all(kind in (_WINDOWED, _WHOLE) for kind in kinds)
        ):
            raise ModelError(f"its layer_types are not {_WINDOWED} or {_WHOLE} for each layer; use another")
        return tuple(window if kind == _WINDOWED else 0 for kind in kinds)

    def rope(self, turned: int, context: int, theta: float = 10_000.0) -> Rope:
        """As its rope_theta and rope_type say; `theta` is what is meant where it states none."""
        theta = self.positive("rope_theta", theta)
        if self.values.get("partial_rotary_factor", 1) != 1:
            raise ModelError("it turns a part of each head, which is not supported; use another")
        match self.values.get("rope_type", self.values.get("type", "default")):
            case "default":
                return Rope(theta)
            case "linear":
                return rope.linear(theta, turned, self.positive("factor"))
            case "llama3":
                return self._llama3(theta, turned)
            case "yarn":
                return self._yarn(theta, turned, context)
            case other:
                raise ModelError(f"it uses {other!r:.60} scaled positions, which is not supported; use another")

    def _llama3(self, theta: float, turned: int) -> Rope:
        return rope.llama3(
            theta,
            turned,
            factor=self.positive("factor"),
            trained=self.size("original_max_position_embeddings"),
            low=self.positive("low_freq_factor"),
            high=self.positive("high_freq_factor"),
        )

    def _yarn(self, theta: float, turned: int, context: int) -> Rope:
        trained = self.size("original_max_position_embeddings", context)
        factor = self.positive("factor", context / trained)
        attention = self.positive("attention_factor", 0.0) if self.values.get("attention_factor") else None
        if attention is None and self.values.get("mscale") and self.values.get("mscale_all_dim"):
            ours, all_dim = self.positive("mscale"), self.positive("mscale_all_dim")
            attention = rope.yarn_attention(factor, ours) / rope.yarn_attention(factor, all_dim)
        return rope.yarn(
            theta,
            turned,
            factor=factor,
            trained=trained,
            fast=self.positive("beta_fast", 32.0),
            slow=self.positive("beta_slow", 1.0),
            whole=self.flag("truncate", True),
            attention=attention,
        )
