"""The llama forward pass on tiny random models: what it computes, and that no schedule changes a bit of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from llama_reading import Reader
from reference_llama import reference_logits

from strata.cpu.device import open_cpu
from strata.errors import ModelError
from strata.models.architecture import DecodeRow, Model
from strata.models.file import open_model
from strata.models.make import make_model
from strata.testing.tiny_model import write_tiny_model

PAGE = 64
PAGES = 80


def tiny(path: Path, *, threads: int = 1, page_tokens: int = PAGE) -> Model:
    model = make_model(open_model(path), open_cpu(threads))
    model.allocate(PAGES * PAGE // page_tokens, page_tokens, context=model.config.context, rows=5)
    return model


@pytest.fixture(scope="module")
def model(tiny_model_path: Path) -> Iterator[Model]:
    model = tiny(tiny_model_path)
    yield model
    model.close()


@pytest.fixture(scope="module")
def tokens(model: Model) -> list[int]:
    return [int(token) for token in np.random.default_rng(5).integers(0, model.config.vocab_size, 2000)]


def new(model: Model, seed: int = 1, *, half: int = 0) -> Reader:
    """A sequence with 40 of the 80 pages, in any order: those of one half or of the other."""
    pages = np.random.default_rng(seed).permutation(PAGES // 2) + half * PAGES // 2
    return Reader(model, [int(page) for page in pages])


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"tied": True, "kv_heads": 1, "head_dim": 8},
        {"heads": 3, "kv_heads": 3, "hidden": 96, "feed_forward": 96, "layers": 1},
        {"kind": "Q8_0"},
        {"kind": "Q4_1", "tied": True},
        {"kind": "Q5_0"},
        {"kind": "Q5_1"},
        {"heads": 6, "kv_heads": 2, "head_dim": 10, "hidden": 36, "feed_forward": 52},
    ],
    ids=str,
)
def test_reading_and_decoding_compute_what_a_plain_model_computes(tmp_path: Path, sizes: dict[str, object]) -> None:
    file = open_model(write_tiny_model(tmp_path / "tiny.gguf", seed=3, **sizes))
    model = make_model(file, open_cpu(2))
    model.allocate(PAGES, PAGE, context=model.config.context, rows=1)
    tokens = [int(token) for token in np.random.default_rng(7).integers(0, file.config.vocab_size, 330)]
    expected = reference_logits(file.config, file.tensors, tokens)
    scale = np.abs(expected).max()
    for end in (1, 63, 64, 65, 200, 300):
        got = new(model).read(tokens[:end], chunk=128).logits
        np.testing.assert_allclose(got, expected[end - 1], atol=2e-5 * scale)
    reader = new(model).read(tokens[:300])
    for at in range(300, 330):
        np.testing.assert_allclose(reader.decode(tokens[at]).logits, expected[at], atol=2e-5 * scale)
    model.close()


def test_a_prompt_has_the_same_bits_however_it_is_cut_into_chunks(model: Model, tokens: list[int]) -> None:
    whole = new(model).read(tokens[:700]).bits()
    for chunk in (16, 48, 64, 100, 512, 1024):
        assert new(model, seed=chunk).read(tokens[:700], chunk=chunk).bits() == whole, chunk


def test_the_start_of_a_prompt_has_the_same_bits_whatever_follows(model: Model, tokens: list[int]) -> None:
    """700 tokens by themselves, and as the start of 800 and of 2000."""
    alone = new(model).read(tokens[:700]).digest()
    for length in (701, 800, 2000):
        assert new(model, seed=2).read(tokens[:length]).digest(700) == alone, length


def test_every_short_prompt_has_the_bits_of_the_start_of_a_long_one(model: Model, tokens: list[int]) -> None:
    long = new(model).read(tokens[:80])
    for length in range(1, 71):
        assert new(model, seed=2, half=1).read(tokens[:length]).digest() == long.digest(length), length


def test_a_token_more_or_less_at_a_chunks_start_changes_no_bit_of_it(model: Model, tokens: list[int]) -> None:
    """A read that goes on inside a tile, as it does behind a known beginning."""
    whole = new(model).read(tokens[:300]).bits()
    for known in (1, 63, 64, 65, 200, 255, 299):
        reader = new(model, seed=3).read(tokens[:known])
        assert reader.read(tokens[known:300]).bits() == whole, known


def test_the_state_is_another_when_one_token_is(model: Model, tokens: list[int]) -> None:
    other = [*tokens[:299], (tokens[299] + 1) % model.config.vocab_size]
    assert new(model).read(tokens[:300]).digest() != new(model).read(other).digest()


def test_a_read_that_others_interrupt_after_every_slice_has_the_same_bits(model: Model, tokens: list[int]) -> None:
    calm = new(model).read(tokens[:300], chunk=64).bits()
    other = new(model, seed=4, half=1).read(tokens[500:800])

    def interrupt() -> None:
        other.position = 300
        other.read(tokens[100:140])
        other.decode(7)

    assert new(model, seed=2).read(tokens[:300], chunk=64, between=interrupt).bits() == calm


def test_a_read_that_another_half_done_one_interrupts_has_the_same_bits(model: Model, tokens: list[int]) -> None:
    calm = new(model).read(tokens[:300]).bits()
    expected = new(model, half=1).read(tokens[300:800]).bits()
    other = new(model, seed=4, half=1)
    half_done = model.read(other, 0, np.array(tokens[300:800]), model.workspace(512))
    steps = iter(range(model.slices(500, 0) - 1))

    def interrupt() -> None:
        if next(steps, None) is not None:
            next(half_done)

    disturbed = new(model, seed=2).read(tokens[:300], chunk=64, between=interrupt)
    for _ in steps:
        next(half_done)
    with pytest.raises(StopIteration) as stop:
        next(half_done)
    other.position, other.logits = 500, stop.value.value
    assert disturbed.bits() == calm
    assert other.bits() == expected


def test_pages_may_be_others_after_a_resume(model: Model, tokens: list[int]) -> None:
    """A read that has begun looks its pages up again: those granted meanwhile are filled."""
    calm = new(model, seed=2).read(tokens[:200]).digest()
    reader = new(model)
    pages, reader.pages = reader.pages, []
    slices = model.read(reader, 0, np.array(tokens[:200]), model.workspace(512))
    reader.pages = pages[:2]
    next(slices)
    reader.pages = pages
    assert sum(1 for _ in slices) == model.slices(200, 0) - 2
    reader.position = 200
    assert reader.digest() == calm


def test_closing_a_half_done_read_leaves_the_model_usable(model: Model, tokens: list[int]) -> None:
    calm = new(model, seed=2).read(tokens[:200]).digest()
    workspace = model.workspace(512)
    slices = model.read(new(model, half=1), 0, np.array(tokens[:500]), workspace)
    next(slices)
    slices.close()
    reader = new(model)
    for _ in model.read(reader, 0, np.array(tokens[:200]), workspace):
        pass
    reader.position = 200
    assert reader.digest() == calm


def test_a_decoded_row_has_the_same_bits_alone_and_among_others(model: Model, tokens: list[int]) -> None:
    def start() -> list[Reader]:
        return [
            Reader(model, list(range(5 * at, 5 * at + 5))).read(tokens[at : at + length])
            for at, length in enumerate((5, 64, 255, 256, 257, 100, 1, 300))
        ]

    alone = [reader.decode(9).bits() for reader in start()]
    for picked in (slice(0, 2), slice(2, 8), slice(0, 8)):
        readers = start()[picked]
        for reader, logits in zip(readers, model.decode([reader.row(9) for reader in readers]), strict=True):
            reader.logits = logits
            reader.position += 1
        assert [reader.bits() for reader in readers] == alone[picked]


@pytest.mark.parametrize("start", [1, 62, 200, 509])
def test_rows_of_one_sequence_have_the_bits_that_they_have_one_by_one(
    model: Model, tokens: list[int], start: int
) -> None:
    """Each attends to those before it in the same step, also where that is computed in several goes, or beside others;
    what stands behind in the pages from rows that were dropped is written over."""
    one_by_one = new(model).read(tokens[:start])
    alone = [one_by_one.decode(token).bits() for token in tokens[start : start + 9]]
    for count in (2, 4, 5, 9):
        reader, other = new(model, half=1).read(tokens[:start]), new(model, 7).read(tokens[:70])
        dropped = [DecodeRow(reader, 3, start + at) for at in range(9)]
        model.decode(dropped)
        rows = [DecodeRow(reader, token, start + at) for at, token in enumerate(tokens[start : start + count])]
        for logits, bits in zip(model.decode([*rows, other.row(5)]), alone[:count], strict=False):
            reader.logits = logits
            reader.position += 1
            assert reader.bits() == bits


def test_a_step_of_no_rows_computes_nothing(model: Model) -> None:
    assert model.decode([]) == []


def test_threads_and_page_sizes_change_no_bit(tiny_model_path: Path, model: Model, tokens: list[int]) -> None:
    usual = new(model).read(tokens[:300])
    usual_words = usual.greedy(20)
    for threads, page_tokens in ((2, 64), (1, 16), (2, 1)):
        other = tiny(tiny_model_path, threads=threads, page_tokens=page_tokens)
        reader = Reader(other, list(reversed(range(PAGES * PAGE // page_tokens)))).read(tokens[:300])
        assert reader.greedy(20) == usual_words
        assert reader.logits.tobytes() == usual.logits.tobytes()
        other.close()


def test_a_read_to_the_last_position_of_the_context_works(tmp_path: Path) -> None:
    """B18: a workspace for the largest chunk does for it anywhere, also where the context ends inside a tile."""
    model = tiny(write_tiny_model(tmp_path / "short.gguf", context=150))
    tokens = list(range(150))
    whole = new(model).read(tokens, chunk=512)
    other = new(model, half=1).read(tokens[:10])
    workspace = model.workspace(140)
    for _ in model.read(other, 10, np.array(tokens[10:]), workspace):
        pass
    other.position = 150
    assert other.digest() == whole.digest()
    model.close()


def test_a_position_without_a_page_is_an_error(model: Model, tokens: list[int]) -> None:
    with pytest.raises(IndexError):
        Reader(model, [0]).read(tokens[:65])
    with pytest.raises(IndexError):
        Reader(model, [0]).read(tokens[:64]).decode(3)


def test_a_token_that_the_model_does_not_have_is_an_error(model: Model) -> None:
    with pytest.raises(IndexError):
        new(model).read([model.config.vocab_size])


def test_a_page_takes_as_much_memory_as_is_said(model: Model) -> None:
    config = model.config
    reader = new(model).read(list(range(64)))
    assert model.bytes_per_page(64) == sum(piece.nbytes for piece in model.state_parts(reader, 64)["kv"])
    assert model.bytes_per_page(10) == 10 * 4 * 2 * config.layers * config.kv_heads * config.head_dim


def test_a_model_that_does_not_fit_the_memory_is_refused_with_both_sizes(tiny_model_path: Path) -> None:
    """B37 (too large for memory): one line that names the file, both sizes and what to do."""
    file = open_model(tiny_model_path)
    needed = sum(4 * int(np.prod(tensor.shape)) for tensor in file.tensors.values())
    with pytest.raises(ModelError) as refused:
        make_model(file, open_cpu(1), available=needed - 1)
    assert str(refused.value).startswith(f"{tiny_model_path}: its weights take 0.00 GiB of memory and")
    assert "0.00 GiB are free" in str(refused.value)
    assert "\n" not in str(refused.value)
    make_model(file, open_cpu(1), available=needed).close()
