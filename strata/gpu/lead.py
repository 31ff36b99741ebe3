"""How far the host may be ahead of the card.  Knows no kernel.

What was launched can't be taken back: whoever comes waits for all of it.  So only a few slices are queued at any time,
enough that the card needn't wait for the host between two of them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from strata.gpu.device import Device

SLICES_AHEAD: Final = 2


class Lead:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._queued: deque[int] = deque()

    def slice_queued(self) -> None:
        """Call at one place in every slice; waits until no more than so many that came before are under way."""
        self._queued.append(self._device.record())
        if len(self._queued) > SLICES_AHEAD:
            self._device.wait(self._queued.popleft())
