"""Which token comes next: pure functions on one row of logits.

A room of its own because everything that decides a token must be in its arguments: no generator that was drawn from
before, no batch, no clock.  Knows nothing of sequences, pages or steps.

The order: `logit_bias` and the mask of `min_tokens`, then the penalties (repetition, frequency, presence), as vLLM
applies them; then temperature, top_k, top_p and min_p, in the order of Hugging Face's logits warpers.  (llama.cpp
applies the temperature last, which gives other sets for top_p and the same for top_k.)  Of equally likely tokens the
lowest id counts as the likelier one, everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from strata.errors import SequenceFailed
from strata.messages import Sampling, TokenLogprob
from strata.models.architecture import Answer, Likeliest, Logits

Weights = NDArray[np.float64]
Ids = NDArray[np.intp]

MOST_LIKELIEST: Final = 64
"""A top_k that is larger is taken from all logits: the others' copying is the least of what it costs."""

_SEED_MASK: Final = 2**64 - 1
_NUCLEUS_SIZES: Final = (64, 1024)
"""How many of the likeliest are tried for top_p before all are sorted: a nucleus is nearly always small."""


@frozen
class Choice:
    """The next token, and the log-probabilities that were asked for."""

    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


def check(sampling: Sampling, vocab_size: int) -> None:
    """Raises SequenceFailed if no token can be chosen this way."""
    numbers = (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.frequency_penalty,
        sampling.presence_penalty,
        sampling.repetition_penalty,
        *(bias for _, bias in sampling.logit_bias),
    )
    if not all(math.isfinite(number) for number in numbers):
        raise SequenceFailed("sampling: not all of its numbers are finite")
    least = min(sampling.temperature, sampling.top_k, sampling.logprobs or 0)
    if least < 0 or sampling.repetition_penalty <= 0 or sampling.max_tokens < 1:
        raise SequenceFailed("sampling: a value is out of its range")
    if any(not 0 <= token < vocab_size for token, _ in sampling.logit_bias):
        raise SequenceFailed(f"logit_bias: a token is not one of the model's {vocab_size}")


def enough(sampling: Sampling, written: int, end_ids: Set[int]) -> int:
    """How many of the largest logits are all that `choose` looks at from so many written tokens on; 0: all are needed.

    Without a top_k all of them weigh something, and what is added to them or asked of them may concern any.
    """
    changed = sampling.logit_bias or _masked(sampling, written, end_ids) or _penalised(sampling)
    if changed or sampling.logprobs is not None:
        return 0
    kept = 1 if sampling.temperature == 0 else sampling.top_k
    return kept if kept <= MOST_LIKELIEST else 0


def choose(
    answer: Answer, sampling: Sampling, *, prompt: Sequence[int], written: Sequence[int], end_ids: Set[int]
) -> Choice:
    """The token that follows `prompt` and `written`, from the model's logits (float32, one for each token), or from the
    largest of them where so many are `enough`: which makes no difference.

    The repetition penalty counts the prompt's tokens and the written ones (as vLLM and Hugging Face do), frequency and
    presence penalty the written ones only (as OpenAI's do).  Raises SequenceFailed if the logits or what the settings
    make of them are not finite, or if no token is left.
    """
    logits = answer.logits if isinstance(answer, Likeliest) else answer
    if not np.isfinite(logits).all():
        raise SequenceFailed("the model's logits are not finite")
    if isinstance(answer, Likeliest):
        at = _pick(logits, sampling, position=len(prompt) + len(written))
        return Choice(int(answer.tokens[at]))
    adjusted = _adjusted(logits, sampling, prompt, written, end_ids)
    token = _pick(adjusted, sampling, position=len(prompt) + len(written))
    if sampling.logprobs is None:
        return Choice(token)
    logprob, top = logprobs(logits, token, sampling.logprobs)
    return Choice(token, logprob, top)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on the two alone: Philox with the seed as key and the position as counter.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).  Raw bits are taken, so that no other method
    of NumPy's can change the stream.
    """
    bits = np.random.Philox(key=seed & _SEED_MASK, counter=position).random_raw()
    return float(int(bits) >> 11) * 2.0**-53


def logprobs(logits: Logits, token: int, n: int) -> tuple[float, tuple[TokenLogprob, ...]]:
    """The natural-log probability of `token`, and the `n` likeliest, in the model's own distribution."""
    exact = logits.astype(np.float64)
    high = float(exact.max())
    whole = high + math.log(np.exp(exact - high).sum())
    # In order of the logits: their differences may be smaller than a log-probability can show.
    likeliest = _largest(exact, n) if n else ()
    return float(exact[token]) - whole, tuple(TokenLogprob(int(i), float(exact[i]) - whole) for i in likeliest)


# -- what the settings make of the logits ---------------------------------------------------------------------------


def _adjusted(
    logits: Logits, sampling: Sampling, prompt: Sequence[int], written: Sequence[int], end_ids: Set[int]
) -> Logits:
    """The logits after bias, mask and penalties; float32, a copy where anything changed."""
    masked, penalised = _masked(sampling, len(written), end_ids), _penalised(sampling)
    if not (masked or penalised or sampling.logit_bias):
        return logits
    adjusted = logits.copy()
    for token, bias in sampling.logit_bias:
        adjusted[token] += np.float32(bias)
    if masked:
        adjusted[list(end_ids)] = -np.inf
    if penalised:
        _penalise(adjusted, sampling, prompt, written)
    return adjusted


def _masked(sampling: Sampling, written: int, end_ids: Set[int]) -> bool:
    return written < sampling.min_tokens and bool(end_ids)


def _penalised(sampling: Sampling) -> bool:
    factor = sampling.repetition_penalty
    return factor != 1.0 or sampling.frequency_penalty != 0 or sampling.presence_penalty != 0


def _penalise(adjusted: Logits, sampling: Sampling, prompt: Sequence[int], written: Sequence[int]) -> None:
    """In place.  Overflow makes an infinity, which the pick refuses."""
    ids, counts = np.unique(np.asarray(written, dtype=np.intp), return_counts=True)
    with np.errstate(over="ignore", invalid="ignore"):
        if sampling.repetition_penalty != 1.0:
            seen = np.union1d(ids, np.asarray(prompt, dtype=np.intp))
            factor = np.float32(sampling.repetition_penalty)
            adjusted[seen] = np.where(adjusted[seen] > 0, adjusted[seen] / factor, adjusted[seen] * factor)
        adjusted[ids] -= counts.astype(np.float32) * np.float32(sampling.frequency_penalty)
        adjusted[ids] -= np.float32(sampling.presence_penalty)


# -- the pick -------------------------------------------------------------------------------------------------------


def _pick(adjusted: Logits, sampling: Sampling, position: int) -> int:
    best = int(np.argmax(adjusted))
    high = float(adjusted[best])
    if high == -math.inf:
        raise SequenceFailed("sampling: no token is left to choose from")
    if not math.isfinite(high):
        raise SequenceFailed("sampling: the penalties overflow")
    if sampling.temperature == 0 or sampling.top_k == 1:
        return best
    kept, weights = _kept(adjusted, high, sampling)
    return _draw(kept, weights, uniform(sampling.seed, position))


def _kept(adjusted: Logits, high: float, sampling: Sampling) -> tuple[Ids, Weights]:
    """The tokens that the cut-offs leave, in order of id, and their weights; the likeliest weighs 1."""
    exact = adjusted.astype(np.float64)
    with np.errstate(over="ignore"):
        weights = np.exp((exact - high) / sampling.temperature)
    kept = np.arange(len(exact))
    if 0 < sampling.top_k < len(exact):
        kept = np.sort(_largest(exact, sampling.top_k))
    if sampling.top_p < 1:
        kept = kept[np.sort(_nucleus(exact[kept], weights[kept], sampling.top_p))]
    if sampling.min_p > 0:
        kept = kept[weights[kept] >= min(sampling.min_p, 1.0)]
    return kept, weights[kept]


def _nucleus(exact: Weights, weights: Weights, top_p: float) -> Ids:
    """The fewest of the likeliest that hold `top_p` of the whole weight; at least one.

    The order is that of the logits: weights that differ in nothing that a float can hold may come of other logits.
    """
    goal = top_p * weights.sum()
    for size in (*_NUCLEUS_SIZES, len(weights)):
        likeliest = _largest(exact, size)
        sums = np.cumsum(weights[likeliest])
        if sums[-1] >= goal:
            return likeliest[: int(np.searchsorted(sums, goal, side="left")) + 1]
    # The two sums are added in different orders, so that the second may stay below the goal by a rounding.
    return likeliest


def _largest(values: NDArray[np.float64], n: int) -> Ids:
    """The indices of the n largest, largest first, of equals the lowest index first; all of them if n is more."""
    if n >= len(values):
        return np.argsort(-values, kind="stable")
    edge = np.partition(values, len(values) - n)[len(values) - n]
    near = np.nonzero(values >= edge)[0]
    return near[np.argsort(-values[near], kind="stable")][:n]


def _draw(kept: Ids, weights: Weights, number: float) -> int:
    """The token in whose part of the summed weights the number (in [0, 1)) falls."""
    sums = np.cumsum(weights)
    index = int(np.searchsorted(sums, number * sums[-1], side="right"))
    # The product may round up to the whole sum; the last token that weighs anything is meant then.
    last = int(np.searchsorted(sums, sums[-1], side="left"))
    return int(kept[min(index, last)])
