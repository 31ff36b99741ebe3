"""A decode step's operations, taken down once and replayed by the card.  One by one they take Python longer than the
card needs for them.

A room of its own because nothing is computed while it is made.  Knows no architecture and no call of the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from attrs import frozen

from strata.gpu.arrays import DeviceArray
from strata.gpu.attention import Rows, Sight
from strata.gpu.cache import PagedCache
from strata.gpu.device import Device
from strata.gpu.graph import Graph
from strata.gpu.lone import LoneRows
from strata.gpu.places import Place, Placed, Shape, pages_of
from strata.gpu.products import RowwiseKernels
from strata.gpu.staging import HALF, Staging
from strata.gpu.weights import GatedMatrix, Matrix

GRAPHS: Final = 3
"""That a step of so many rows keeps, the last used: one for each power of two of its longest row's spans."""

_LAUNCHES: Final = 3
"""Of one operation at most: of attending, and of a product with queries', keys' and values' matrices."""

_LAUNCH_BYTES: Final = 1024
"""Set aside for a launch in a graph.  What a driver takes for one is not known: never measured on a card."""


def bytes_of(operations: int) -> int:
    """Memory of the card that a step with so many may take."""
    return GRAPHS * operations * _LAUNCHES * _LAUNCH_BYTES


@frozen
class Replaying:
    """What all recorded steps of a device share.  `table`: room on the card for the places of any."""

    device: Device
    staging: Staging
    kernels: RowwiseKernels
    rows: LoneRows
    table: int

    @classmethod
    def on(cls, device: Device, staging: Staging, kernels: RowwiseKernels, rows: LoneRows) -> Replaying:
        return cls(device, staging, kernels, rows, device.alloc(4 * HALF))

    def place(self, shape: Shape, places: Sequence[Place], cache: PagedCache) -> Placed:
        """Always at the same place of the card, where graphs look; in the order of the stream, so after all before."""
        cache.settle(pages_of(places))
        self.staging.send(shape.table(places, cache.page_tokens), self.table)
        return Placed(self.table, shape)


class RecordedStep:
    """Implements `strata.models.ops.Recorder`.

    A shape's first step is told one by one, which also loads its kernels; its second is captured, and from then on it
    is replayed.  All three launch the same.
    """

    def __init__(self, shared: Replaying) -> None:
        self._shared = shared
        self._told: list[Callable[[Sequence[Place] | Placed], None]] = []
        self._graphs: dict[Shape, Graph | None] = {}
        """None: seen once."""
        self._cache: PagedCache
        self._heads = 0

    # -- taking down ----------------------------------------------------------------------------------------------

    def norm(self, x: DeviceArray, weight: DeviceArray, eps: float, out: DeviceArray) -> None:
        self._take(partial(self._shared.kernels.norm, x, weight, eps, out))

    def add_norm(self, x: DeviceArray, weight: DeviceArray, eps: float, out: DeviceArray) -> None:
        self._take(partial(self._shared.kernels.add_norm, x, weight, eps, out))

    def norm_heads(self, x: DeviceArray, weight: DeviceArray, eps: float) -> None:
        self._take(partial(self._shared.kernels.norm_heads, x, weight, eps))

    def add(self, x: DeviceArray, vector: DeviceArray) -> None:
        self._take(partial(self._shared.kernels.add, x, vector))

    def linear(self, x: DeviceArray, matrix: Matrix, out: DeviceArray) -> None:
        self._take(partial(self._shared.kernels.linear, x, matrix, out))

    def add_linear(self, x: DeviceArray, matrix: Matrix, out: DeviceArray) -> None:
        self._take(partial(self._shared.kernels.add_linear, x, matrix, out))

    def gated(self, x: DeviceArray, matrix: GatedMatrix, out: DeviceArray) -> None:
        self._take(partial(self._shared.kernels.gated, x, matrix, out))

    def attend(
        self,
        queries: DeviceArray,
        keys: DeviceArray,
        values: DeviceArray,
        sight: Sight,
        cache: PagedCache,
        out: DeviceArray,
    ) -> None:
        lone, rows = self._shared.rows, Rows(queries, keys, values)
        self._cache, self._heads = cache, queries.columns // cache.head_dim

        def told(where: Sequence[Place] | Placed) -> None:
            if isinstance(where, Placed):
                lone.attend_placed(rows, sight, cache, where, out)
            else:
                lone.attend(rows, sight, cache, where, out)

        self._told.append(told)

    def _take(self, operation: Callable[[], None]) -> None:
        self._told.append(lambda _where: operation())

    # -- doing ----------------------------------------------------------------------------------------------------

    def run(self, places: Sequence[Place]) -> None:
        """Steps that there is no memory for at once are told one by one."""
        shape = Shape.rounded(places, self._cache.page_tokens)
        if self._shared.rows.fit(shape, self._heads, self._cache):
            self._run(self._shared.place(shape, places, self._cache))
        else:
            self._tell(places)

    def _run(self, placed: Placed) -> None:
        shape, device = placed.shape, self._shared.device
        if shape not in self._graphs:
            self._tell(placed)
            self._keep(shape, None)
            return
        graph = self._graphs[shape] or device.capture(partial(self._tell, placed))
        device.replay(graph)
        self._keep(shape, graph)

    def _tell(self, where: Sequence[Place] | Placed) -> None:
        for told in self._told:
            told(where)

    def _keep(self, shape: Shape, graph: Graph | None) -> None:
        """As the last used; the one that wasn't for longest may have to go."""
        self._graphs.pop(shape, None)
        self._graphs[shape] = graph
        if len(self._graphs) > GRAPHS:
            unused = self._graphs.pop(next(iter(self._graphs)))
            if unused is not None:
                self._shared.device.forget(unused)
