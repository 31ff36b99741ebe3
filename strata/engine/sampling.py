"""Which token comes next: pure functions on one row of logits.

A room of its own because everything that decides a token must be in its arguments: no generator that was drawn from
before, no batch, no clock.  Knows nothing of sequences, pages or steps.  How a token is drawn in the end: drawing.py.

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

from strata.draws import ALL, Draw
from strata.engine.drawing import WHOLE, drawn, likeliest, scale_of
from strata.errors import SequenceFailed
from strata.messages import Sampling, TokenLogprob
from strata.models.architecture import Answer, Logits

_SEED_MASK: Final = 2**64 - 1

_LARGEST: Final = Draw(scale=1.0, keep=1, nucleus=ALL, least=0, seed=0)


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


def needs_logits(sampling: Sampling, written: int, end_ids: Set[int]) -> bool:
    """Whether it takes more than a draw to choose from so many written tokens on: something is added to the logits,
    asked of them, or told.
    """
    changed = sampling.logit_bias or _masked(sampling, written, end_ids) or _penalised(sampling)
    return bool(changed) or sampling.logprobs is not None


def choose(
    answer: Answer, sampling: Sampling, *, prompt: Sequence[int], written: Sequence[int], end_ids: Set[int]
) -> Choice:
    """The token that follows `prompt` and `written`, from the model's logits (float32, one for each token).

    Where these weren't needed it may have been drawn already, which makes no difference.

    The repetition penalty counts the prompt's tokens and the written ones (as vLLM and Hugging Face do), frequency and
    presence penalty the written ones only (as OpenAI's do).  Raises SequenceFailed if the logits or what the settings
    make of them are not finite, or if no token is left.
    """
    if isinstance(answer, int):
        return Choice(answer)
    if not np.isfinite(answer).all():
        raise SequenceFailed("the model's logits are not finite")
    adjusted = _adjusted(answer, sampling, prompt, written, end_ids)
    _refuse_what_has_no_largest(adjusted)
    token = drawn(adjusted, draw_of(sampling), len(prompt) + len(written))
    if sampling.logprobs is None:
        return Choice(token)
    logprob, top = logprobs(answer, token, sampling.logprobs)
    return Choice(token, logprob, top)


def draw_of(sampling: Sampling) -> Draw:
    """What these settings make of a row of logits that has nothing else to do with them."""
    if sampling.temperature == 0 or sampling.top_k == 1:
        return _LARGEST
    return Draw(
        scale=scale_of(sampling.temperature),
        keep=sampling.top_k,
        nucleus=min(int(max(sampling.top_p, 0.0) * 2.0**64), ALL),
        least=math.ceil(min(max(sampling.min_p, 0.0), 1.0) * WHOLE),
        seed=sampling.seed & _SEED_MASK,
    )


def logprobs(logits: Logits, token: int, n: int) -> tuple[float, tuple[TokenLogprob, ...]]:
    """The natural-log probability of `token`, and the `n` likeliest, in the model's own distribution."""
    exact = logits.astype(np.float64)
    high = float(exact.max())
    whole = high + math.log(np.exp(exact - high).sum())
    # In order of the logits: their differences may be smaller than a log-probability can show.
    top = likeliest(logits, n) if n else ()
    return float(exact[token]) - whole, tuple(TokenLogprob(int(i), float(exact[i]) - whole) for i in top)


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


def _refuse_what_has_no_largest(adjusted: Logits) -> None:
    high = float(adjusted.max())
    if high == -math.inf:
        raise SequenceFailed("sampling: no token is left to choose from")
    if not math.isfinite(high):
        raise SequenceFailed("sampling: the penalties overflow")
