"""Who may come in, and how long it may stand in the queue (R6).  Refuses, and changes nothing but its own counts.

Knows sizes and limits; no order, and not who starts next.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from strata.config import SchedulerSettings
from strata.errors import Overloaded, PromptTooLong, WaitedTooLong
from strata.scheduling.pace import Pace
from strata.scheduling.record import Record
from strata.scheduling.supply import Supply
from strata.scheduling.waiting import Waiting


class Admission:
    """What there is, and how many pages a prompt takes, is the supply's to say: two counts could differ."""

    def __init__(self, settings: SchedulerSettings, waiting: Waiting, pace: Pace, supply: Supply) -> None:
        self._settings = settings
        self._waiting = waiting
        self._pace = pace
        self._supply = supply
        self.refused: Counter[str] = Counter()
        """By reason."""

    def __repr__(self) -> str:
        return f"<Admission {self._waiting.queued} of {self._settings.max_queued} queued>"

    def admit(self, *, prompt_tokens: int, max_tokens: int) -> int:
        """How many pages it takes at worst.  Raises PromptTooLong if it could never fit, Overloaded if the queue is
        full."""
        worst = self.worst(prompt_tokens, max_tokens)
        self._refuse_beyond_the_queue(prompt_tokens)
        return worst

    def worst(self, prompt_tokens: int, max_tokens: int) -> int:
        """How many pages it takes at worst.  Raises PromptTooLong, and counts it, if there are not so many."""
        worst, total = self._supply.pages_for(prompt_tokens + max_tokens), self._supply.pages.total
        if worst > total:
            self.refused["too long"] += 1
            tokens, limit = prompt_tokens + max_tokens, total * self._supply.page_tokens
            raise PromptTooLong(
                f"the prompt has {prompt_tokens} tokens and its answer may have {max_tokens}, {tokens} together; "
                f"all pages hold {limit}",
                tokens=tokens,
                limit=limit,
            )
        return worst

    def overdue_at(self) -> float:
        """When the first of those queued will have waited for `max_wait_s`; inf if there is no such time."""
        limit = self._settings.max_wait_s
        if limit is None:
            return inf
        first = self._waiting.first_queued()
        return inf if first is None else first.arrived + limit

    def overdue(self, now: float) -> tuple[Record, WaitedTooLong] | None:
        """The first of those queued, if it has waited too long, and what it is told."""
        if self.overdue_at() > now or (first := self._waiting.first_queued()) is None:
            return None
        return first, WaitedTooLong(
            f"it was queued for {now - first.arrived:.1f} s, and at most {self._settings.max_wait_s:g} s are allowed",
            retry_after_s=self._retry_after_s(),
        )

    def _refuse_beyond_the_queue(self, prompt_tokens: int) -> None:
        queued, tokens = self._waiting.queued, self._waiting.queued_tokens
        # A single prompt is never too much for an empty queue.
        too_many = queued >= self._settings.max_queued
        too_much = queued > 0 and tokens + prompt_tokens > self._settings.max_queued_tokens
        if too_many or too_much:
            self.refused["overloaded"] += 1
            raise Overloaded(
                f"{queued} requests with {tokens} tokens are queued already", retry_after_s=self._retry_after_s()
            )

    def _retry_after_s(self) -> float:
        return self._pace.retry_after_s(self._waiting.queued_tokens)
