"""How a token is drawn: what an engine tells a device of it.  Knows no request, no logits and no device.

A room of its own, below all of them, because the engine makes of a request what every device must understand alike.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

ALL: Final = (1 << 64) - 1
"""Of a nucleus: every token is in it."""


@frozen
class Draw:
    """How a row's next token is drawn from its logits, and from nothing else.

    The tokens that take part are those that all three cut-offs leave, taken in this order; each weighs
    2^(40 + scale * (its logit - the largest)), as `strata.engine.drawing` says exactly.  They lie side by side in order
    of id, each as long as its weight, and the token is the one that lies at b / 2^64 of the whole.  b are the first 64
    bits that Philox4x64-10 makes of `seed` and the token's position (Salmon et al., "Parallel random numbers: as easy
    as 1, 2, 3", 2011; https://doi.org/10.1145/2063384.2063405).
    """

    scale: float
    """log2(e) / temperature, as a float32."""
    keep: int
    """So many of those with the largest logits, of equals the lowest ids; 0: all."""
    nucleus: int
    """The fewest of the likeliest that weigh so many 2^64ths of all that were kept; ALL: all of them."""
    least: int
    """Those that weigh so much."""
    seed: int
    """64 bits."""
