"""Drawing tokens from rows of logits on the card, so that the host needn't copy these.  Knows no request.

What is drawn is said in `cuda/draw.cu`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np

from strata.draws import Draw
from strata.gpu import table
from strata.gpu.arrays import DeviceArray
from strata.gpu.device import Device
from strata.gpu.staging import Staging

_DRAW: Final = struct.Struct("<QQQQfi")
_NOTHING: Final = _DRAW.pack(0, 0, 0, 0, 0.0, -1)

_TOGETHER: Final = 1024
"""Rows whose tokens there is memory for; more of them are drawn in goes."""


class Drawing:
    def __init__(self, device: Device, staging: Staging, together: int = _TOGETHER) -> None:
        self._device = device
        self._staging = staging
        self._together = together
        self._tokens = device.alloc(4 * together)

    def of(self, logits: DeviceArray, draws: Sequence[Draw | None], positions: Sequence[int]) -> list[int | None]:
        """See `strata.models.ops.Ops.draw`."""
        told = [*map(_packed, draws, positions)]
        goes = range(0, len(told), self._together)
        return [token for at in goes for token in self._some(logits[at:], told[at : at + self._together])]

    def _some(self, logits: DeviceArray, draws: Sequence[bytes]) -> list[int | None]:
        told = self._staging.put(np.frombuffer(b"".join(draws), np.int32))
        kernel = self._device.load(table.DRAW)
        self._device.launch(kernel, (len(draws), 1), logits.pointer, logits.stride, logits.columns, told, self._tokens)
        tokens = np.empty(len(draws), np.int32)
        self._device.download(self._tokens, tokens)
        return [token if token >= 0 else None for token in tokens.tolist()]


def _packed(draw: Draw | None, position: int) -> bytes:
    if draw is None:
        return _NOTHING
    return _DRAW.pack(draw.nucleus, draw.least, draw.seed, position, draw.scale, draw.keep)
