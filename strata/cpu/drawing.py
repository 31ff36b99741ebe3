"""How a token is drawn, as a device of this room must know it.  Knows no token and no request."""

from __future__ import annotations

from typing import Protocol


class Draw(Protocol):
    """See `strata.models.ops.Draw`."""

    @property
    def scale(self) -> float: ...
    @property
    def keep(self) -> int: ...
    @property
    def nucleus(self) -> int: ...
    @property
    def least(self) -> int: ...
    @property
    def seed(self) -> int: ...
