"""What is remembered of requests that ended.  Knows how much that may be; not how they came to their end."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from attrs import frozen

from strata.messages import Ended, Figures, Outcome, Seq
from strata.scheduling.lifecycle import Change

KEPT: Final = 1000
"""Requests that are remembered after their end."""
KEPT_FIRST, KEPT_LAST = 2, 6
"""Changes of an ended request's history; with them and its figures it takes about 1 KiB."""


@frozen
class Past:
    """A request that has ended: what it took and how it went, no word of what it said."""

    seq: Seq
    outcome: Outcome
    figures: Figures
    history: tuple[Change, ...]


class Memory(OrderedDict[Seq, Past]):
    """The last `KEPT` that ended, the oldest first."""

    def remember(self, ended: Ended, history: tuple[Change, ...]) -> None:
        self[ended.seq] = Past(ended.seq, ended.outcome, ended.figures, _in_short(history))
        while len(self) > KEPT:
            self.popitem(last=False)


def _in_short(history: tuple[Change, ...]) -> tuple[Change, ...]:
    if len(history) <= KEPT_FIRST + KEPT_LAST:
        return history
    return history[:KEPT_FIRST] + history[-KEPT_LAST:]
