"""Every operation of a card beside its twin on the processor: told the same, both answer the same but for rounding.

What each of them computes is held to plain arithmetic elsewhere; here a difference between the two is found, whoever
of them is wrong.  All goes by `strata.models.ops.Ops` alone, so that it holds whatever kernels a card is made of.

How far apart they may be follows from float32, whose roundings lose U = 2^-24 of a number at most.  A sum of n products
loses no more than n + 1 of them, each in proportion to the sizes of all that is summed (Higham, Accuracy and Stability
of Numerical Algorithms, section 3.1); weights become float32 by a few roundings more: n + 8.  Either twin may lose so
much, so they are twice as far apart at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import attrs
import numpy as np
import pytest
from draw_cases import EVERYTHING, LARGEST
from hard import MAGNITUDES, Floats, exact_product, opened, random_blocks, rounded, rows, tensor
from told import Memory, Sequences, U, put, weight

from strata.cpu.choice import NUMPY, runnable
from strata.cpu.device import open_cpu
from strata.cpu.kernels import TILE
from strata.cpu.ops import CpuOps
from strata.gpu.device import Device
from strata.gpu.ops import GpuOps
from strata.gpu.weights import FORMATS, float32
from strata.models.config import RawTensor
from strata.models.ops import Ops

LEAST = 1e-43
"""Some of the smallest steps that there are: what is lost beneath the smallest normal number."""
EPS = 1e-5
FORMS = ("rows", "tiles")


@pytest.fixture(scope="module")
def twins() -> Iterator[list[CpuOps]]:
    """NumPy's kernels, and the best of the compiled ones that run here."""
    there = [open_cpu(1, kernels=name) for name in dict.fromkeys((NUMPY, runnable()[-1]))]
    yield there
    for ops in there:
        ops.close()


@pytest.fixture
def both(card: GpuOps, twins: list[CpuOps]) -> Callable[[Callable[[Ops], Floats]], Iterator[tuple[Floats, Floats]]]:
    """What the card makes of it, beside what each twin does."""

    def run(told: Callable[[Ops], Floats]) -> Iterator[tuple[Floats, Floats]]:
        got = told(card)
        for twin in twins:
            yield got, told(twin)

    return run


@pytest.fixture(scope="module", params=["f16", "bf16"])
def number(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def sixteen(make_device: Callable[[], Device], number: str) -> Iterator[GpuOps]:
    """A card that reads, and keeps keys and values, in numbers of 16 bits."""
    ops = GpuOps(make_device, number)
    yield ops
    ops.close()


Both = Callable[[Callable[[Ops], Any]], Iterator[tuple[Any, Any]]]


def near(got: Floats, twin: Floats, apart: Floats | float) -> None:
    """Both are numbers, and no further apart than that."""
    assert np.isfinite(got).all()
    wrong = ~(np.abs(got.astype(np.float64) - twin) <= apart + LEAST)
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size}, the first at {np.argwhere(wrong)[0]}"


def width_of(kind: str) -> int:
    return 512 if kind.endswith("_K") else 96


def count_of(form: str) -> int:
    """Rows that come alone are a ragged few; those that are read together are a tile of the processor's."""
    return 11 if form == "rows" else TILE


def largest_of_block(numbers: Floats) -> Floats:
    """In the place of each number the largest of its 32 neighbours, with which it shares a scale."""
    return np.abs(numbers).reshape(len(numbers), -1, 32).max(-1).repeat(32, axis=-1)


# -- what goes in and out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_numbers_come_back_as_they_were_put(both: Both, magnitude: str) -> None:
    """Some columns of some rows."""
    numbers = rows(5, 104, 1, magnitude)
    for got, twin in both(lambda ops: ops.numbers(put(ops, numbers)[1:4, 3:90])):
        assert got.tobytes() == twin.tobytes() == numbers[1:4, 3:90].tobytes()


@pytest.mark.parametrize("kind", FORMATS)
def test_embeddings_of_every_format_are_the_twins(both: Both, kind: str) -> None:
    """Made of a scale's product and a sum, one or two roundings for each, of numbers like the largest of the block."""
    columns, tokens = width_of(kind), np.array([8, 0, 3, 3, 7])
    data = random_blocks(9, columns, kind) if kind.startswith("Q") else tensor(9, columns, kind).data
    matrix = RawTensor("w", kind, (9, columns), data)

    def embedded(ops: Ops) -> Floats:
        out = ops.empty(5, columns)
        ops.embed(ops.matrix([matrix]), tokens, 7.3, out)
        return ops.numbers(out)

    for got, twin in both(embedded):
        near(got, twin, 2 * 4 * U * largest_of_block(twin))


def test_vectors_are_added_to_the_bit(both: Both) -> None:
    x, parts = rows(TILE, 104, 1), [weight(rows(1, size, size)[0]) for size in (70, 34)]

    def added(ops: Ops, form: str) -> Floats:
        out = put(ops, x)
        getattr(ops, form).add(out, ops.vectors(parts))
        return ops.numbers(out)

    for form in FORMS:
        for got, twin in both(lambda ops, form=form: added(ops, form)):
            assert got.tobytes() == twin.tobytes()


# -- products -----------------------------------------------------------------------------------------------------


def apart_of_product(x: Floats, weights: Floats, kind: str, form: str) -> tuple[Floats, Floats]:
    """The product in float64, and how far from it each twin may be.

    A compiled kernel multiplies lone rows with quantised weights in whole numbers, of which the largest of 32
    neighbours has 20 bits at least (`strata/cpu/native/fixed.h`): so much is lost of each.
    """
    exact, size = exact_product(x, weights)
    apart = (x.shape[1] + 8) * U * size
    if form == "rows" and kind.startswith("Q"):
        apart += 2.0**-20 * exact_product(largest_of_block(x), weights)[1]
    return exact, apart


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kind", "magnitude"),
    [*(("F32", magnitude) for magnitude in MAGNITUDES), *((kind, "plain") for kind in FORMATS), ("Q4_1", "mixed")],
)
def test_products_are_the_twins(both: Both, form: str, kind: str, magnitude: str) -> None:
    """Two matrices one below the other, in columns of wider rows; and added to what is there."""
    count, columns = count_of(form), width_of(kind)
    x, before = rows(count, columns, 1, magnitude), rows(count, 80, 4, magnitude)
    above, below = tensor(21, columns, kind, 2, "plain"), tensor(50, columns, kind, 3, "plain")
    _, apart = apart_of_product(x, np.concatenate([float32(above), float32(below)]), kind, form)

    def multiplied(ops: Ops, name: str) -> Floats:
        out = put(ops, before)
        getattr(getattr(ops, form), name)(put(ops, x), ops.matrix([above, below]), out[:, 5:76])
        return ops.numbers(out)

    for name, there in (("linear", 0.0), ("add_linear", np.abs(before[:, 5:76]))):
        for got, twin in both(lambda ops, name=name: multiplied(ops, name)):
            near(got[:, 5:76], twin[:, 5:76], 2 * (apart + 2 * U * there))
            assert np.delete(got, np.s_[5:76], 1).tobytes() == np.delete(before, np.s_[5:76], 1).tobytes()


def apart_of_gate(gate: tuple[Floats, Floats | float], up: tuple[Floats, Floats | float], activation: str) -> Floats:
    """How far each twin may be from what two products, each with how far it may be off, become.

    An activation is nowhere steeper than 1.13, so that is what is made of a product's error at most.  Its own
    arithmetic has eight roundings; what is lost of its exponent is in proportion to that.
    """
    (left, off_left), (right, off_right) = gate, up
    opening, exponent = opened(left, activation)
    own = np.abs(opening * right) * (8 + 4 * np.minimum(np.abs(exponent), 100)) * U
    return 1.13 * off_left * (np.abs(right) + off_right) + np.abs(opening) * off_right + own


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize(
    ("kind", "magnitude"), [*((kind, "plain") for kind in FORMATS), ("F32", "large"), ("F32", "denormal")]
)
def test_gates_are_the_twins(
    both: Both, form: str, activation: Literal["silu", "gelu"], kind: str, magnitude: str
) -> None:
    columns = width_of(kind)
    x, sides = rows(count_of(form), columns, 1, magnitude), (tensor(34, columns, kind, 2), tensor(34, columns, kind, 3))

    def gated(ops: Ops) -> Floats:
        out = ops.empty(len(x), 34)
        getattr(ops, form).gated(put(ops, x), ops.gated_matrix(*sides, activation), out)
        return ops.numbers(out)

    apart = apart_of_gate(*(apart_of_product(x, float32(side), kind, form) for side in sides), activation)
    for got, twin in both(gated):
        near(got, twin, 2 * apart)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_what_opens_a_gate_is_the_twins_where_products_are_exact(
    both: Both, form: str, activation: Literal["silu", "gelu"]
) -> None:
    """Of each row one number is 1 and the others 0.  Gates are all numbers from -120 to 120, and large ones."""
    x, sides = np.eye(count_of(form), 64, dtype=np.float32), [rows(640, 64, seed) for seed in (2, 3)]
    sides[0][:] = np.linspace(-120, 120, 640, dtype=np.float32)[:, np.newaxis] + np.arange(64) / 200
    sides[0][::9] *= np.float32(1e9)

    def gated(ops: Ops) -> Floats:
        out = ops.empty(len(x), 640)
        getattr(ops, form).gated(put(ops, x), ops.gated_matrix(*map(weight, sides), activation), out)
        return ops.numbers(out)

    left, right = (side.T[: len(x)].astype(np.float64) for side in sides)
    for got, twin in both(gated):
        near(got, twin, 2 * apart_of_gate((left, 0.0), (right, 0.0), activation))


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_products_in_tensor_cores_are_the_twins_of_what_they_are_rounded_to(
    sixteen: GpuOps, number: str, twins: list[CpuOps], activation: Literal["silu", "gelu"]
) -> None:
    """Products of numbers of 16 bits are exact in float32, so the sums are as near as those of float32."""
    x, sides = rows(TILE, 96, 1), [rows(34, 96, seed) for seed in (2, 3)]

    def multiplied(ops: Ops, as_they_are: Callable[[Floats], Floats]) -> tuple[Floats, Floats]:
        there, (left, right) = put(ops, as_they_are(x)), (weight(as_they_are(side)) for side in sides)
        product, gated = ops.empty(TILE, 68), ops.empty(TILE, 34)
        ops.tiles.linear(there, ops.matrix([left, right]), product)
        ops.tiles.gated(there, ops.gated_matrix(left, right, activation), gated)
        return ops.numbers(product), ops.numbers(gated)

    products = [apart_of_product(rounded(x, number), rounded(side, number), "F32", "tiles") for side in sides]
    for twin in twins:
        got, wanted = multiplied(sixteen, lambda one: one), multiplied(twin, lambda one: rounded(one, number))
        near(got[0], wanted[0], 2 * np.concatenate([apart for _, apart in products], axis=1))
        near(got[1], wanted[1], 2 * apart_of_gate(*products, activation))


# -- norms --------------------------------------------------------------------------------------------------------

ROUNDINGS_OF_NORM = 12
"""Beside those of the sum of squares: of the mean, the root, its quotient and the weight; twice, as there are twins.
A root halves what the sum, in which nothing cancels, is off by."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("columns", [8, 1000])
def test_norms_are_the_twins(both: Both, form: str, magnitude: str, columns: int) -> None:
    x, before = rows(count_of(form), columns, 1, magnitude), rows(count_of(form), columns, 2)
    vector = weight(rows(1, columns, 3)[0])

    def normed(ops: Ops, name: str) -> Floats:
        out = put(ops, before)
        getattr(getattr(ops, form), name)(put(ops, x), ops.vector(vector), EPS, out)
        return ops.numbers(out)

    off = (columns + ROUNDINGS_OF_NORM) * U
    for got, twin in both(lambda ops: normed(ops, "norm")):
        size = np.abs(twin).astype(np.float64)
        near(got, twin, off * size)
    for got, twin in both(lambda ops: normed(ops, "add_norm")):
        near(got, twin, off * size + 2 * U * np.abs(twin))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("head_dim", [8, 64, 104])
def test_norms_of_heads_are_the_twins(both: Both, form: str, head_dim: int) -> None:
    """Some columns of wider rows; heads of very different sizes."""
    x = rows(count_of(form), 5 * head_dim, 1) * np.repeat(np.float32([1, 1e-6, 1e6, 1, 1]), head_dim)
    vector = weight(rows(1, head_dim, 2)[0])

    def normed(ops: Ops) -> Floats:
        out = put(ops, x)
        getattr(ops, form).norm_heads(out[:, head_dim : 4 * head_dim], ops.vector(vector), EPS)
        return ops.numbers(out)

    for got, twin in both(normed):
        near(got, twin, (head_dim + ROUNDINGS_OF_NORM) * U * np.abs(twin))
        for edge in (np.s_[:, :head_dim], np.s_[:, 4 * head_dim :]):
            assert got[edge].tobytes() == x[edge].tobytes()


# -- attention ----------------------------------------------------------------------------------------------------

CASES = {
    "plain": Sequences(200),
    "pages of one": Sequences(130, page_tokens=1),
    "wide pages": Sequences(200, page_tokens=64, head_dim=64),
    "an odd width": Sequences(100, head_dim=24),
    "partly turned": Sequences(130, head_dim=64, turned=24, factors=tuple(1.0 + at for at in range(12)), scale=1.2),
    "a window of one": Sequences(130, window=1),
    "a window": Sequences(200, window=70),
    **{f"{magnitude} values": Sequences(100, magnitude=magnitude) for magnitude in MAGNITUDES},
    "large scores": Sequences(100, far=1e12),
}
TURNING = 2 * 3 * U
"""A turned number is the sum of two products; values are stored as they are."""
READS = ((0, range(64)), (0, range(64, 100)), (1, range(37)), (1, range(37, 80)))
"""The grid's whole tiles; ends that are ragged; one that goes on in the middle of a tile, behind what is cached."""


@pytest.mark.parametrize("case", CASES)
def test_attention_of_tiles_is_the_twins(both: Both, case: str) -> None:
    of = CASES[case]
    reads = [*READS, (0, range(100, of.length))] if of.length > 100 else READS

    def read(ops: Ops) -> list[Floats]:
        memory = Memory(ops, of)
        return [*(memory.read(sequence, real) for sequence, real in reads), *(memory.stored(at, 80) for at in range(2))]

    for got, twin in both(read):
        for (_, real), one, other in zip(reads, got, twin, strict=False):
            near(one, other, of.apart(real))
        for one, other in zip(got[-2:], twin[-2:], strict=True):
            near(one, other, TURNING * np.abs(other).max())


LONE = {
    **CASES,
    "spans": Sequences(600),
    "a window over spans": Sequences(600, window=300),
    "a window at the edges of spans": Sequences(600, window=256),
}
EDGES = (0, 1, 15, 16, 17, 63, 64, 69, 70, 71, 99, 255, 256, 257, 511, 512, 513, 599)
"""Of pages, windows and spans of keys."""


@pytest.mark.parametrize("case", LONE)
def test_attention_of_lone_rows_is_the_twins(both: Both, case: str) -> None:
    """Rows of two sequences by turns; one alone, and the last ones side by side, of which each sees those before it."""
    of = LONE[case]
    asked = [(number % 2, position) for number, position in enumerate(EDGES) if position < of.length]
    asked += [(1, of.length - 1 - back) for back in (2, 0, 1)]

    def read(ops: Ops) -> list[Floats]:
        memory = Memory(ops, of)
        memory.fill()
        return [memory.rows(asked), memory.rows(asked[-1:]), memory.stored(1, of.length)]

    for got, twin in both(read):
        near(got[0], twin[0], of.apart([position for _, position in asked]))
        near(got[1], twin[1], of.apart([of.length - 2]))
        near(got[2], twin[2], TURNING * np.abs(twin[2]).max())


LOST = {"f16": 2.0**-11, "bf16": 2.0**-8}
"""Of a number that is rounded to 16 bits, in proportion; those of float16 end at 2^-24."""


def test_attention_in_tensor_cores_is_the_twins_but_for_its_rounding_of_weights(
    sixteen: GpuOps, number: str, twins: list[CpuOps]
) -> None:
    """Queries, keys and values have 16 bits, and positions turn so slowly that they stay as they are.

    So a key's weight alone is rounded, and in the sum by which is divided too.  Lone rows round nothing.
    """
    of = Sequences(100, factors=(1e37,) * 8, number=number)
    reads, asked = [*READS], [(0, 99), (1, 3), (1, 79), (0, 16)]

    def read(ops: Ops) -> tuple[list[Floats], Floats]:
        memory = Memory(ops, of)
        return [memory.read(sequence, real) for sequence, real in reads], memory.rows(asked)

    for twin in twins:
        (got, lone), (wanted, twins_lone) = read(sixteen), read(twin)
        for (_, real), one, other in zip(reads, got, wanted, strict=True):
            of_weights = 2 * 1.01 * LOST[number] + real.stop * 2.0**-25
            near(one, other, of.apart(real) + of_weights * of.largest)
        near(lone, twins_lone, of.apart([position for _, position in asked]))


@pytest.mark.parametrize(("turned", "factors", "scale"), [(16, (), 1.0), (24, (1.1, 2.3) * 6, 1.2), (2, (1e4,), 1.0)])
def test_rotations_are_the_twins_to_the_bit(
    card: GpuOps, twins: list[CpuOps], turned: int, factors: tuple[float, ...], scale: float
) -> None:
    """Made in float64 by both: of each pair's angle the cosine and the sine."""
    angles = card.rotation(5000, turned, 1e4, factors, scale)
    for twin in twins:
        assert card.numbers(angles).tobytes() == twin.rotation(5000, turned, 1e4, factors, scale)[:5000].tobytes()


# -- drawing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 10_000])
def test_tokens_that_are_drawn_are_the_twins(both: Both, steps: int) -> None:
    """The likeliest, of equals the first; and those that a twin draws by kernels of its own, which NumPy's doesn't.

    Among few different numbers, zeros of both signs too, and what is none.
    """
    numbers = np.round(rows(6, 4136, 1) * steps / 4)
    numbers[1, 7], numbers[2, 4135], numbers[3, 0] = np.nan, np.inf, -np.inf
    some = [attrs.evolve(EVERYTHING, seed=row) for row in range(6)]
    for draws, everybodys in (([LARGEST] * 6, True), (some, False)):
        for got, twin in both(lambda ops, draws=draws: ops.draw(put(ops, numbers)[:, :4130], draws, range(6))):
            assert [token is None for token in got] == [False, True, False, True, False, False]
            if everybodys or any(token is not None for token in twin):
                assert got == twin
