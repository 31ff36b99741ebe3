"""The default model, held against what another implementation wrote and against itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from llama_reading import Reader

from strata.cpu.device import open_cpu
from strata.models.architecture import Model
from strata.models.file import open_model
from strata.models.make import make_model

GOLDENS = json.loads((Path(__file__).parents[1] / "data" / "golden_smollm2.json").read_text())


@pytest.fixture(scope="module")
def model(default_model_path: Path) -> Iterator[Model]:
    model = make_model(open_model(default_model_path), open_cpu())
    model.allocate(12, 64, context=12 * 64, rows=4)
    yield model
    model.close()


@pytest.mark.parametrize("case", GOLDENS["cases"], ids=lambda case: case["prompt"][:20])
def test_greedy_output_is_the_golden_one(model: Model, case: dict[str, object]) -> None:
    prompt, first, expected = case["prompt_ids"], case["first_top5"], case["greedy_ids"]
    reader = Reader(model, [5, 2]).read(prompt)
    np.testing.assert_allclose(reader.logits[first["ids"]], first["logits"], atol=2e-3)
    shifted = reader.logits.astype(np.float64)
    assert np.log(np.exp(shifted - shifted.max()).sum()) + shifted.max() == pytest.approx(first["logsumexp"], abs=2e-3)
    assert reader.greedy(len(expected)) == expected


def test_the_start_of_a_prompt_has_the_same_bits_whatever_follows_and_however_it_is_cut(model: Model) -> None:
    tokens = [int(token) for token in np.random.default_rng(1).integers(0, model.config.vocab_size, 390)]
    whole = Reader(model, [0, 3, 1, 4, 2, 5, 6]).read(tokens)
    short = Reader(model, [11, 8, 10, 9, 7]).read(tokens[:270], chunk=100)
    assert short.digest() == whole.digest(270)


def test_a_read_that_others_interrupt_has_the_same_bits(model: Model) -> None:
    tokens = [int(token) for token in np.random.default_rng(1).integers(0, model.config.vocab_size, 100)]
    calm = Reader(model, [0, 1]).read(tokens)
    calm.greedy(4)
    other = Reader(model, [6, 7, 8]).read(tokens[:40])
    slices = iter(range(10**6))

    def interrupt() -> None:
        if next(slices) % 10 == 0:
            other.position = 40
            other.decode(11)

    disturbed = Reader(model, [3, 2]).read(tokens, between=interrupt)
    disturbed.greedy(4)
    assert disturbed.digest() == calm.digest()
    assert disturbed.logits.tobytes() == calm.logits.tobytes()
