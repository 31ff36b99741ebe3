"""Whatever happens between: tokens and every part of the state are those of an undisturbed run, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
from drive import Drive, prompt
from parity import DISTURBANCES, OTHERS, PROMPT, SAMPLING, Disturb, Fingerprints, Run, another, numbers, same

from strata.messages import Seq


def test_a_warm_engine_gives_what_a_cold_one_gives(warm: Drive, undisturbed: Run):
    same(Run(warm), undisturbed)


@pytest.mark.parametrize("disturb", DISTURBANCES.values(), ids=DISTURBANCES)
def test_a_park_after_any_slice_or_step_changes_no_bit(warm: Drive, undisturbed: Run, disturb: Disturb):
    """B54: sampled tokens too."""
    for place in range(1, len(undisturbed.prints) + 1):
        same(Run(warm, {place: disturb}), undisturbed)


@pytest.mark.parametrize("parks", [3, 10])
def test_parks_after_slices_that_follow_each_other_change_no_bit(warm: Drive, undisturbed: Run, parks: int):
    for first in range(1, len(undisturbed.prints) - parks + 2):
        same(Run(warm, dict.fromkeys(range(first, first + parks), another(1))), undisturbed)


def test_a_park_after_every_slice_and_step_changes_no_bit(warm: Drive, undisturbed: Run):
    same(Run(warm, dict.fromkeys(range(1, len(undisturbed.prints) + 1), another(1))), undisturbed)


@pytest.mark.parametrize("disturb", [None, another(1)], ids=["alone", "parked after every slice and step"])
def test_what_an_engine_before_has_written_is_repeated_bit_for_bit(
    warm: Drive, undisturbed: Run, disturb: Disturb | None
):
    """B31: after any number of tokens each state is the one that it was, and so are all tokens that follow."""
    places = {} if disturb is None else dict.fromkeys(range(1, len(undisturbed.prints) + 1), disturb)
    for count_written in range(1, SAMPLING.max_tokens):
        run = Run(warm, places, written=undisturbed.tokens[:count_written])
        assert run.tokens == undisturbed.tokens[count_written:]
        assert run.prints == undisturbed.prints


def test_decoding_beside_others_changes_no_bit(warm: Drive, undisturbed: Run):
    """B54: the same seed gives the same tokens, batched or not, and so do they that join it."""
    others = {Seq(next(numbers)): attrs.evolve(OTHERS, seed=seed, max_tokens=20) for seed in range(3)}
    alone = {}
    for seq, sampling in others.items():
        warm.facts.clear()
        warm.open(seq, prompt(seq, 20), sampling)
        warm.step(read=seq)
        warm.run()
        alone[seq] = warm.tokens(seq)
    warm.facts.clear()
    for seq, sampling in others.items():
        warm.open(seq, prompt(seq, 20), sampling)
        warm.step(*others, read=seq)
        warm.until_written(seq, 1)
    victim = Seq(next(numbers))
    warm.open(victim, PROMPT, SAMPLING)
    warm.step(*others, read=victim)
    prints: Fingerprints = [warm.engine.fingerprint(victim)]
    while warm.advance() and not warm.ended(victim):
        now = warm.engine.fingerprint(victim)
        if now != prints[-1]:
            prints.append(now)
    warm.run()
    assert prints[1:] == undisturbed.prints
    assert warm.tokens(victim) == undisturbed.tokens
    assert {seq: warm.tokens(seq) for seq in others} == alone


def test_the_size_of_pages_changes_no_token(make: Callable[..., Drive], undisturbed: Run):
    drive = make()
    small = Drive(drive.model, page=1, pages=400)
    assert Run(small).tokens == undisturbed.tokens
