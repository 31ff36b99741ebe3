"""How fast the pairs of a head turn where a model's positions are scaled beyond those that it was trained for.

Plain numbers in and out; knows no file and no device.
"""

from __future__ import annotations

import math

from strata.errors import ModelError
from strata.models.config import Rope


def linear(theta: float, turned: int, factor: float) -> Rope:
    """All pairs are slower by one factor (https://arxiv.org/abs/2306.15595)."""
    return Rope(theta) if factor == 1 else Rope(theta, (factor,) * (turned // 2))


def llama3(theta: float, turned: int, *, factor: float, trained: int, low: float, high: float) -> Rope:
    """Slow pairs are stretched by the factor, fast ones are not, those between in part.

    https://arxiv.org/abs/2407.21783, section 3.4.3; the constants are the model's own.
    """
    if low >= high:
        raise ModelError("its low_freq_factor is not below its high_freq_factor; fetch it again or use another")
    factors = []
    for pair in range(turned // 2):
        turns = trained * theta ** (-2 * pair / turned) / (2 * math.pi)
        factors.append(_between(factor, (turns - low) / (high - low)))
    return Rope(theta, tuple(factors))


def yarn(
    theta: float,
    turned: int,
    *,
    factor: float,
    trained: int,
    fast: float = 32.0,
    slow: float = 1.0,
    whole: bool = True,
    attention: float | None = None,
) -> Rope:
    """Pairs that turn more than `fast` times in what it was trained for stay, those below `slow` times are stretched.

    https://arxiv.org/abs/2309.00071, sections 3.2 to 3.4.  `whole`: the bounds lie on whole pairs.  `attention`: what
    all that is turned is multiplied by; None: as the paper has it.
    """
    if theta <= 1:
        raise ModelError("its rope_theta is not above 1; fetch it again or use another")
    begin, end = _pair_of(fast, theta, turned, trained), _pair_of(slow, theta, turned, trained)
    if whole:
        begin, end = math.floor(begin), math.ceil(end)
    begin, end = max(begin, 0), min(end, turned - 1)
    width = max(end - begin, 0.001)
    factors = tuple(_between(factor, 1 - (pair - begin) / width) for pair in range(turned // 2))
    return Rope(theta, factors, yarn_attention(factor) if attention is None else attention)


def yarn_attention(factor: float, scale: float = 1.0) -> float:
    """https://arxiv.org/abs/2309.00071, equation 22; `scale` is a model's own part in it."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _between(factor: float, kept: float) -> float:
    """What a speed is divided by, of which so much is kept and the rest is slowed down by the factor."""
    kept = min(1.0, max(0.0, kept))
    return 1 / (kept + (1 - kept) / factor)


def _pair_of(turns: float, theta: float, turned: int, trained: int) -> float:
    """Which pair turns so many times in the positions that it was trained for; need be no whole number."""
    return turned * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))
