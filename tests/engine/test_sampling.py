"""Which token is chosen depends on the logits, the settings, the tokens so far and nothing else."""

from __future__ import annotations

import math
from collections import Counter

import attrs
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strata.engine.drawing import drawn, random_bits
from strata.engine.sampling import check, choose, draw_of, logprobs, needs_logits
from strata.errors import SequenceFailed
from strata.messages import Sampling

GREEDY = Sampling(temperature=0.0)
PLAIN = Sampling()

unhurried = settings(deadline=None)

some_logits = arrays(np.float32, st.integers(2, 40), elements=st.floats(-20, 20, width=32))
tied_logits = arrays(np.float32, st.integers(2, 40), elements=st.integers(-3, 3).map(float))


def pick(logits, sampling: Sampling = GREEDY, *, prompt=(), written=(), end_ids=frozenset()) -> int:
    array = np.asarray(logits, dtype=np.float32)
    return choose(array, sampling, prompt=prompt, written=written, end_ids=end_ids).token


def reference(logits, sampling: Sampling, *, prompt=(), written=(), end_ids=frozenset()) -> np.ndarray:
    """The distribution, computed the plain way: every step over whole, sorted lists.  The logits stay float32."""
    f = np.float32
    x = list(logits.astype(f))
    for token, bias in sampling.logit_bias:
        x[token] += f(bias)
    if len(written) < sampling.min_tokens:
        x = [f(-math.inf) if token in end_ids else value for token, value in enumerate(x)]
    for token in {*prompt, *written}:
        factor = f(sampling.repetition_penalty)
        x[token] = x[token] / factor if x[token] > 0 else x[token] * factor
    for token, times in Counter(written).items():
        x[token] = x[token] - f(times) * f(sampling.frequency_penalty) - f(sampling.presence_penalty)
    x = [float(value) for value in x]
    order = sorted(range(len(x)), key=lambda token: (-x[token], token))
    if sampling.top_k:
        order = order[: sampling.top_k]
    weight = {token: math.exp((x[token] - x[order[0]]) / sampling.temperature) for token in order}
    if sampling.top_p < 1:
        kept, goal = [], sampling.top_p * math.fsum(weight.values())
        for token in order:
            kept.append(token)
            if math.fsum(weight[one] for one in kept) >= goal:
                break
        order = kept
    order = [token for token in order if weight[token] >= sampling.min_p]
    total = math.fsum(weight[token] for token in order)
    return np.array([weight[token] / total if token in order else 0.0 for token in range(len(x))])


# -- what a draw is enough for --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling",
    [
        attrs.evolve(GREEDY, **named)
        for named in (
            {"logit_bias": ((1, 1.0),)},
            {"min_tokens": 3},
            {"repetition_penalty": 1.1},
            {"frequency_penalty": -0.1},
            {"presence_penalty": 0.1},
            {"logprobs": 0},
        )
    ],
    ids=str,
)
def test_what_may_concern_any_token_needs_the_logits(sampling):
    assert needs_logits(sampling, 2, {3})
    assert not needs_logits(attrs.evolve(GREEDY, min_tokens=2), 2, {3})
    assert not needs_logits(Sampling(top_k=65, top_p=0.1, min_p=0.1, temperature=0.1), 2, {3})


def test_a_token_that_was_drawn_is_the_one_that_comes():
    assert choose(7, PLAIN, prompt=(1,), written=(2,), end_ids=frozenset()).token == 7


# -- greedy ---------------------------------------------------------------------------------------------------------


@unhurried
@given(tied_logits)
def test_greedy_takes_the_largest_and_of_equals_the_lowest_id(logits):
    assert pick(logits) == min(range(len(logits)), key=lambda token: (-logits[token], token))


@unhurried
@given(some_logits, st.integers(0, 2**64), st.floats(0.01, 5))
def test_one_of_the_likeliest_is_greedy(logits, seed, temperature):
    assert pick(logits, Sampling(temperature=temperature, top_k=1, seed=seed)) == pick(logits)


@unhurried
@given(tied_logits, st.integers(0, 99))
def test_next_to_no_temperature_leaves_only_the_likeliest(logits, seed):
    assert logits[pick(logits, Sampling(temperature=1e-300, seed=seed))] == logits.max()


@unhurried
@given(some_logits, st.integers(0, 99))
def test_a_nucleus_of_nothing_is_the_likeliest(logits, seed):
    assert pick(logits, Sampling(top_p=0.0, seed=seed)) == pick(logits)


# -- the distribution -----------------------------------------------------------------------------------------------

samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 3, 10, 100]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.1]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
    logit_bias=st.sampled_from([(), ((0, 5.0), (1, -5.0))]),
    min_tokens=st.sampled_from([0, 3]),
)


@settings(unhurried, max_examples=200)
@given(some_logits, samplings, st.integers(0, 2**32), st.lists(st.integers(0, 1), max_size=6))
def test_a_token_is_drawn_where_the_plain_distribution_has_it(logits, sampling, seed, written):
    """The number drawn falls into the token's own part of the summed probabilities, computed another way."""
    known = {"prompt": (0,), "written": written, "end_ids": frozenset({1})}
    chances = reference(logits, sampling, **known)
    token = pick(logits, attrs.evolve(sampling, seed=seed), **known)
    edges = np.concatenate([[0.0], np.cumsum(chances)])
    number = random_bits(seed, 1 + len(written)) / 2.0**64
    # Where a cut-off falls on a rounding the two may differ; the generator meets that once in ages.
    assume(not near_a_cut(logits, sampling, known))
    assert edges[token] - 1e-5 <= number <= edges[token + 1] + 1e-5
    assert chances[token] > 0


def near_a_cut(logits, sampling: Sampling, known) -> bool:
    """Whether another rounding could keep another set of tokens."""
    wide, narrow = (
        attrs.evolve(sampling, top_p=sampling.top_p * factor, min_p=sampling.min_p * other)
        for factor, other in ((1 + 1e-5, 1 - 1e-5), (1 - 1e-5, 1 + 1e-5))
    )
    return bool(((reference(logits, wide, **known) > 0) != (reference(logits, narrow, **known) > 0)).any())


@pytest.mark.parametrize(
    "sampling",
    [
        PLAIN,
        Sampling(temperature=0.6),
        Sampling(top_k=5),
        Sampling(top_p=0.8),
        Sampling(min_p=0.1),
        Sampling(temperature=1.5, top_k=12, top_p=0.9, min_p=0.02),
    ],
    ids=["plain", "cool", "top k", "top p", "min p", "all"],
)
def test_many_draws_come_as_often_as_the_distribution_says(sampling):
    logits = 2 * np.random.default_rng(5).standard_normal(20).astype(np.float32)
    draws = 2000
    seen = Counter(pick(logits, attrs.evolve(sampling, seed=seed)) for seed in range(draws))
    expected = draws * reference(logits, sampling)
    assert {token for token in seen if expected[token] == 0} == set()
    kept = expected > 0
    chi = sum((seen[token] - expected[token]) ** 2 / expected[token] for token in np.nonzero(kept)[0])
    # Mean k, variance 2k: six deviations off is no accident, and the seeds are fixed anyway.
    freedom = max(int(kept.sum()) - 1, 1)
    assert chi < freedom + 6 * math.sqrt(2 * freedom)


@unhurried
@given(some_logits, st.integers(0, 999), st.integers(0, 50))
def test_cut_offs_that_cut_nothing_change_no_token(logits, seed, position):
    written = [0] * position
    wide = Sampling(seed=seed, top_k=len(logits), top_p=1.0, min_p=0.0)
    assert pick(logits, wide, written=written) == pick(logits, Sampling(seed=seed), written=written)


def test_a_nucleus_that_needs_more_than_the_first_tries_is_whole():
    flat = np.zeros(5000, dtype=np.float32)
    tokens = {pick(flat, Sampling(top_p=0.5, seed=seed)) for seed in range(500)}
    assert 2400 < max(tokens) < 2500


def test_a_nucleus_goes_by_the_logits_where_the_weights_can_not_tell():
    assert {pick([0.0, 1e-30], Sampling(top_p=0.1, seed=seed)) for seed in range(50)} == {1}


def test_a_token_without_weight_is_never_drawn():
    logits = np.array([0.0, -20_000.0, -20_000.0], dtype=np.float32)
    assert {pick(logits, Sampling(seed=seed)) for seed in range(200)} == {0}


# -- a draw --------------------------------------------------------------------------------------------------------


def test_any_seed_is_one_of_64_bits():
    assert draw_of(Sampling(seed=-1)) == draw_of(Sampling(seed=2**64 - 1)) != draw_of(Sampling(seed=1))


@unhurried
@given(some_logits, samplings, st.integers(0, 2**32), st.integers(0, 9))
def test_a_draw_says_all_that_the_settings_say(logits, sampling, seed, position):
    """Where there is nothing but settings, so that a device that is told the draw alone picks the same token."""
    plain = attrs.evolve(sampling, frequency_penalty=0, presence_penalty=0, repetition_penalty=1, seed=seed)
    plain = attrs.evolve(plain, logit_bias=(), min_tokens=0)
    assert drawn(logits, draw_of(plain), position) == pick(logits, plain, written=[0] * position)


# -- bias, penalties, end tokens ------------------------------------------------------------------------------------


def test_a_bias_is_added_before_everything_else():
    assert pick([0, 1, 2], attrs.evolve(GREEDY, logit_bias=((0, 2.5),))) == 0
    assert pick([0, 1, 2], attrs.evolve(GREEDY, logit_bias=((2, -100.0),))) == 1


def test_frequency_counts_what_was_written_and_presence_whether():
    logits = [3.0, 2.5, 0.0]
    assert pick(logits, attrs.evolve(GREEDY, presence_penalty=0.4), written=[0, 0, 0]) == 0
    assert pick(logits, attrs.evolve(GREEDY, frequency_penalty=0.4), written=[0, 0, 0]) == 1
    assert pick(logits, attrs.evolve(GREEDY, presence_penalty=0.6), written=[0]) == 1
    both = attrs.evolve(GREEDY, presence_penalty=0.6, frequency_penalty=0.6)
    assert pick(logits, both, prompt=[0, 0, 0], written=[]) == 0, "the prompt does not count"


def test_repetition_counts_prompt_and_answer_and_works_on_both_sides_of_0():
    halving = attrs.evolve(GREEDY, repetition_penalty=2.0)
    assert pick([3.0, 2.0], halving, prompt=[0]) == 1
    assert pick([3.0, 2.0], halving, written=[0]) == 1
    assert pick([-3.0, -4.0], halving, written=[0, 0, 0]) == 1


def test_an_end_token_can_not_come_before_min_tokens():
    early = attrs.evolve(GREEDY, min_tokens=2)
    ends = frozenset({0})
    assert [pick([9.0, 1.0], early, written=[5] * n, end_ids=ends) for n in range(3)] == [1, 1, 0]
    assert pick([9.0, 1.0], attrs.evolve(GREEDY, ignore_eos=True), end_ids=ends) == 0, "it comes, and does not end"


# -- log-probabilities ----------------------------------------------------------------------------------------------


@unhurried
@given(some_logits, st.integers(0, 10))
def test_log_probabilities_are_those_of_the_model_itself(logits, count):
    warped = Sampling(temperature=0.5, top_k=2, logprobs=count, logit_bias=((0, 9.0),), seed=3)
    choice = choose(logits, warped, prompt=(), written=(), end_ids=frozenset())
    exact = logits.astype(np.float64)
    expected = exact - math.log(math.fsum(math.exp(value) for value in exact))
    assert choice.logprob == pytest.approx(expected[choice.token], abs=1e-9)
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:count]
    assert [top.token for top in choice.top] == order
    assert [top.logprob for top in choice.top] == pytest.approx([expected[token] for token in order], abs=1e-9)


def test_log_probabilities_are_not_computed_unless_asked_for():
    choice = choose(np.zeros(4, np.float32), GREEDY, prompt=(), written=(), end_ids=frozenset())
    assert choice.logprob is None
    assert logprobs(np.zeros(4, np.float32), 0, 0) == (pytest.approx(math.log(0.25)), ())


# -- what can't be chosen from --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_an_error(bad):
    with pytest.raises(SequenceFailed, match="not finite"):
        pick([0.0, bad, 1.0])


def test_no_token_left_is_an_error():
    with pytest.raises(SequenceFailed, match="no token is left"):
        pick([0.0, 1.0], attrs.evolve(GREEDY, min_tokens=1), end_ids=frozenset({0, 1}))


@pytest.mark.parametrize("sampling", [GREEDY, PLAIN])
def test_an_overflow_is_an_error(sampling):
    with pytest.raises(SequenceFailed, match="overflow"):
        pick([1e30, 1.0], attrs.evolve(sampling, repetition_penalty=1e-30), prompt=[0])


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": math.nan},
        {"temperature": -0.1},
        {"top_p": math.inf},
        {"min_p": math.nan},
        {"top_k": -1},
        {"logprobs": -1},
        {"repetition_penalty": 0.0},
        {"frequency_penalty": -math.inf},
        {"presence_penalty": math.nan},
        {"max_tokens": 0},
        {"logit_bias": ((4, 1.0),)},
        {"logit_bias": ((-1, 1.0),)},
        {"logit_bias": ((0, math.nan),)},
    ],
    ids=repr,
)
def test_settings_that_choose_nothing_are_refused_before_the_start(change):
    check(PLAIN, 4)
    with pytest.raises(SequenceFailed):
        check(attrs.evolve(PLAIN, **change), 4)
