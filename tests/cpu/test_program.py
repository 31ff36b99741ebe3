"""Operations that are taken down and done in one call: the same bits as one by one, wherever the rows are."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest
from compiled_cases import kernels, pool, weight
from quantised_cases import random_rows

from strata.cpu.cache import PagedCache
from strata.cpu.kernels import RowKernels, rotation_table
from strata.cpu.workers import Workers
from strata.models.ops import CacheShape

ROWS, HEADS, HEAD_DIM, WIDTH = 3, 2, 32, 64


@pytest.fixture(autouse=True)
def _set() -> Iterator[None]:
    before = kernels.used()
    yield
    kernels.use(before)


class Room:
    """Arrays that a program works on, and the same operations one by one."""

    def __init__(self) -> None:
        self.x = random_rows(ROWS, WIDTH)
        self.vector, self.scale = random_rows(1, 3 * WIDTH, 2)[0], random_rows(1, HEAD_DIM, 3)[0]
        self.together = np.zeros((ROWS, 3 * WIDTH), np.float32)
        self.out = np.zeros((ROWS, WIDTH), np.float32)
        self.weights = kernels.Weights(tuple(weight("Q4_1", WIDTH, WIDTH, seed)[0] for seed in (1, 2, 3)), False)
        self.table = rotation_table(64, HEAD_DIM, 10000.0)
        shape = CacheShape(layers=1, pages=4, page_tokens=16, kv_heads=HEADS, head_dim=HEAD_DIM)
        self.cache = PagedCache(shape)

    @property
    def sides(self) -> list[np.ndarray]:
        """Queries, keys and values."""
        return [self.together[:, at : at + WIDTH] for at in range(0, 3 * WIDTH, WIDTH)]

    def taken_down(self) -> kernels.Program:
        program = kernels.Program()
        program.product(self.weights, self.x, self.together, False)
        program.add(self.together, self.vector)
        program.add_rows(self.sides[1], self.x)
        program.norm(self.sides[0], self.scale, 1e-5, self.sides[0])
        program.attend(*self.sides, self.table, self.cache.memory, 0, 8, 0.2, self.out)
        return program

    def one_by_one(self, threads: kernels.Pool, places: list[tuple[list[int], int]]) -> np.ndarray:
        kernels.product(threads, self.weights, self.x, self.together, False)
        self.together += self.vector
        self.sides[1][...] += self.x
        kernels.norm(self.sides[0], self.scale, 1e-5, self.sides[0])
        kernels.attend(threads, *self.sides, self.table, self.cache.memory, 0, 8, 0.2, places, self.out)
        return self.out


PLACES = [[([0, 1], 17), ([2], 3), ([3], 0)], [([0, 1], 18), ([2], 4), ([3], 1)], [([2, 0], 20), ([1], 0), ([3], 2)]]


@pytest.mark.parametrize("name", kernels.sets())
def test_a_program_does_what_its_operations_do_one_by_one_again_and_again(name: str) -> None:
    kernels.use(name)
    there, here = Room(), Room()
    program = there.taken_down()
    with pool(2) as threads:
        for places in PLACES:
            there.x += 1
            here.x += 1
            program.run(threads, places)
            assert here.one_by_one(threads, places).tobytes() == there.out.tobytes()
            assert here.cache.memory.tobytes() == there.cache.memory.tobytes()


def test_a_norm_of_heads_is_that_of_numpy() -> None:
    wide = random_rows(ROWS, 3 * WIDTH)
    plain, weights = wide[:, :WIDTH].copy(), random_rows(1, HEAD_DIM, 3)[0]
    RowKernels(Workers(1)).norm_heads(plain, weights, 1e-5)
    kernels.norm(wide[:, :WIDTH], weights, 1e-5, wide[:, :WIDTH])
    np.testing.assert_allclose(wide[:, :WIDTH], plain, rtol=1e-5)
    with pytest.raises(ValueError, match="fit"):
        kernels.norm(wide, random_rows(1, HEAD_DIM + 1)[0], 1e-5, wide)


def test_a_program_holds_its_arrays_and_refuses_places_that_are_not_there() -> None:
    room = Room()
    program = room.taken_down()
    with pool(1) as threads:
        for wrong, error in (([([9], 0)] * ROWS, IndexError), ([([0], 16)] * ROWS, IndexError), ([], ValueError)):
            with pytest.raises(error):
                program.run(threads, wrong)
        out = room.out
        del room
        program.run(threads, PLACES[0])
    assert np.isfinite(out).all()
    assert out.any()


def test_what_does_not_fit_is_not_taken_down() -> None:
    room = Room()
    program = room.taken_down()
    other = Room()
    with pytest.raises(ValueError, match="fit"):
        program.product(room.weights, room.x, room.out, False)
    with pytest.raises(ValueError, match="fit"):
        program.add(room.x, room.vector)
    for more in (room.together, room.x[1:]):
        with pytest.raises(ValueError, match="fit"):
            program.add_rows(room.out, more)
    with pytest.raises(ValueError, match="fit"):
        program.attend(*other.sides, other.table, other.cache.memory, 0, 8, 0.2, other.out)
    with pool(1) as threads:
        program.run(threads, PLACES[0])


def test_a_program_takes_the_memory_that_is_said() -> None:
    program, x = kernels.Program(), random_rows(ROWS, WIDTH)
    for operations in range(70):
        assert sys.getsizeof(program) == kernels.Program.bytes_of(operations)
        program.add(x, x[0])
