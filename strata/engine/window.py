"""A decode step's windows: for each sequence the token that comes next and those that are offered to follow it.

A room of its own because what is offered must change nothing but the time: each token is chosen from its own row, as it
would be without an offer, and what does not agree is dropped.  Knows no message and no step.
"""

from __future__ import annotations

import collections.abc
from typing import Final

from attrs import frozen

from strata.engine.device_work import decode
from strata.engine.sampling import Choice
from strata.engine.sequence import Sequence
from strata.engine.trace import Trace
from strata.models.architecture import Answer, DecodeRow, Model

MOST_ROWS: Final = 8
"""Rows of a step in which something is offered: a few share one reading of the weights."""


@frozen
class Window:
    """`offered`: tokens that may follow the next one, each in a row of its own."""

    sequence: Sequence
    offered: tuple[int, ...] = ()

    def rows(self, end_ids: collections.abc.Set[int]) -> list[DecodeRow]:
        one = self.sequence
        tokens, draw = (one.next_input, *self.offered), one.next_draw(end_ids)
        return [DecodeRow(one, token, position, draw) for position, token in enumerate(tokens, one.position)]

    def settle(self, choices: collections.abc.Sequence[Choice], trace: Trace | None) -> int:
        """Before the chosen are written: how many of those that were offered are among them."""
        one, accepted = self.sequence, max(0, len(choices) - 1)
        one.zeal.stepped(len(self.offered), accepted)
        if self.offered and trace is not None:
            trace.window(one.seq, position=one.position, offered=len(self.offered), accepted=accepted)
        return accepted


def open_windows(sequences: list[Sequence], *, rows: int, context: int) -> list[Window]:
    """One for each.  What is left of `rows`, and of MOST_ROWS, is shared out evenly."""
    each = (min(rows, MOST_ROWS) - len(sequences)) // len(sequences)
    return [Window(one, one.offer(each, context) if each > 0 else ()) for one in sequences]


Outcome = list[Choice] | Exception
"""The tokens that follow, at least one; none where the next one is written already; or what stands in the way."""


def compute(
    model: Model, windows: list[Window], end_ids: collections.abc.Set[int], context: int
) -> collections.abc.Iterator[Outcome]:
    """What comes of each window, in order.  Changes nothing of a sequence.  Raises DeviceFault, MemoryError."""
    results = decode(model, [window.rows(end_ids) for window in windows])
    for window, result in zip(windows, results, strict=True):
        yield result if isinstance(result, Exception) else _chosen(window, result, end_ids, context)


def _chosen(window: Window, answers: list[Answer], end_ids: collections.abc.Set[int], context: int) -> Outcome:
    if window.sequence.repeats:
        return []
    try:
        return window.sequence.next_tokens(answers, window.offered, end_ids, context)
    except MemoryError:
        raise
    except Exception as error:
        return error
