"""Which pages each request takes, holds and gets.  Knows the ledger and how far each request is; not who runs, nor why.

What somebody has read of a prompt that begins alike needn't be read again: its pages are shared (R7).
"""

from __future__ import annotations

from collections.abc import Iterable

from strata.config import SchedulerSettings
from strata.messages import Grant
from strata.scheduling.decision import Opening
from strata.scheduling.lifecycle import State
from strata.scheduling.pages import Pages
from strata.scheduling.record import Record


class Supply:
    """Out of `pages` of `page_tokens` tokens on the device, and an arena of `slots` more."""

    def __init__(self, settings: SchedulerSettings, *, pages: int, page_tokens: int, slots: int) -> None:
        self.pages = Pages(pages, slots)
        self.swaps = slots > 0
        """Whether pages can be moved at all.  If not, all that started has its worst case for itself."""
        self.shares = False
        """Whether any prompt came with names for its pages, so that others may know them."""
        self._settings = settings
        self.page_tokens = page_tokens

    def __repr__(self) -> str:
        return f"<Supply {self.pages} of {self.page_tokens} tokens>"

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    # -- what it takes ------------------------------------------------------------------------------------------------

    def look_up(self, record: Record) -> None:
        """How much of a queued one's prompt is known now; it holds none of it.  And what it will reserve."""
        self.shares = self.shares or bool(record.prefix)
        self._know(record, len(self._known(record)))
        record.expected = self.expected(record)

    def expected(self, record: Record) -> int:
        """What it is expected to take in all (pages): at least one more than it has, at most its worst."""
        if not self.swaps:
            return record.worst
        answer = max(record.written + self.page_tokens, self._settings.expect_new_tokens)
        return min(record.worst, self.pages_for(record.prompt_tokens + answer))

    def required(self, record: Record) -> int:
        """What its next chunk or its next token takes (pages)."""
        if record.reads:
            return self.pages_for(record.chunk_end)
        return min(record.worst, self.pages_for(max(record.prompt_tokens + 1, record.stands_at)))

    def to_run(self, record: Record) -> int:
        """What it must have on the device to run (pages): all that it holds, and what comes next."""
        return max(self.pages.count(record.seq), self.required(record))

    def away(self, record: Record) -> int:
        """How many of its pages are not on the device."""
        return self.pages.away(record.seq) if self.swaps and record.state is not State.QUEUED else 0

    def is_ready(self, record: Record) -> bool:
        """Whether it has on the device all that it holds and what comes next."""
        seq = record.seq
        return self.pages.away(seq) == 0 and self.pages.count(seq) >= self.required(record)

    def fits(self, record: Record, beside: Iterable[Record]) -> bool:
        """Whether it can run beside these, as far as they are not of a lower priority, and everybody can still end."""
        if not self.swaps:
            return True
        known: tuple[int, ...] = ()
        if record.state is State.QUEUED:
            known = self._known(record)
            end = len(known) * self.page_tokens
            number = self.pages_for(min(record.prompt_tokens, (end // record.chunk_tokens + 1) * record.chunk_tokens))
        else:
            number = self.to_run(record)
        if number + sum(self.pages.promised(r.seq) for r in beside if r.priority >= record.priority) > self.pages.total:
            return False
        if record.state is State.QUEUED:
            return self.pages.may_start(record.worst, number, known)
        return self.pages.may_hold(record.seq, number)

    # -- what it gets -------------------------------------------------------------------------------------------------

    def start(self, record: Record) -> Opening:
        """Reserve what it is expected to take, and hold what is known of its prompt."""
        known = self.pages.reserve(record.seq, record.worst, self._prefix(record), expected=record.expected)
        self._know(record, len(known))
        self.run(record)
        return Opening(record.seq, known, record.known)

    def run(self, record: Record) -> None:
        """It starts or goes on, and may have what that takes."""
        self._promise(record, self.to_run(record))

    def park(self, record: Record) -> None:
        """It keeps what it has, and what it was promised beyond that is nobody's."""
        self.pages.promise(record.seq, 0)

    def grow(self, record: Record) -> bool:
        """Whether it may have what comes next."""
        return self._may_have(record, self.required(record))

    def look_ahead(self, record: Record, spare: int) -> int:
        """Promise what comes after that, if it takes at most so many pages; how many more it may have now."""
        goal = self.goal(record)
        more = goal - self.pages.promised(record.seq)
        return more if 0 < more <= spare and self._may_have(record, goal) else 0

    def goal(self, record: Record) -> int:
        """Pages up to the end of the chunk after this one; for an answer one page more than its next token needs."""
        if record.reads:
            end = min(record.prompt_tokens, record.chunk_end + record.chunk_tokens)
            goal = self.pages_for(end) + (end == record.prompt_tokens)
        else:
            goal = self.pages_for(record.stands_at) + 1
        if record.wants_since is not None:
            goal, record.wants_since = max(goal, self.pages.count(record.seq) + 1), None
        return min(goal, record.worst)

    def grant(self, record: Record, goal: int) -> Grant | None:
        """So many pages in all."""
        number = goal - self.pages.count(record.seq)
        return Grant(record.seq, self.pages.grant(record.seq, number)) if number > 0 else None

    def read(self, record: Record) -> None:
        """What it has read whole may be read by others.  Only reading gives the same bits to all; answers may not."""
        if self._settings.prefix_cache and record.prefix:
            self.pages.share(record.seq, record.prefix[: record.position // self.page_tokens])

    def end(self, record: Record) -> None:
        # Its pages are free at once: messages are handled in order, so the next owner's come after its close.
        self.pages.release(record.seq)

    def forget(self) -> None:
        """The engine is gone, and what it knew.  Nobody holds anything."""
        self.pages = Pages(self.pages.total, self.pages.slots)

    def renew(self, *, pages: int, page_tokens: int, slots: int) -> None:
        """Another engine is up, with these."""
        self.pages = Pages(pages, slots)
        self.swaps = slots > 0
        self.page_tokens = page_tokens

    # -- inside -------------------------------------------------------------------------------------------------------

    def _may_have(self, record: Record, number: int) -> bool:
        if number <= self.pages.promised(record.seq):
            return True
        if not self.pages.may_hold(record.seq, number):
            return False
        self._promise(record, number)
        return True

    def _promise(self, record: Record, number: int) -> None:
        self.pages.promise(record.seq, number)
        if self.swaps:
            self.pages.expect(record.seq, max(self.expected(record), self.pages.promised(record.seq)))

    def _known(self, record: Record) -> tuple[int, ...]:
        return self.pages.known(self._prefix(record), record.worst)

    def _prefix(self, record: Record) -> tuple[bytes, ...]:
        """What may be known of a prompt: all but its last token, whose logits are needed."""
        if not self._settings.prefix_cache:
            return ()
        return record.prefix[: (record.prompt_tokens - 1) // self.page_tokens]

    def _know(self, record: Record, pages: int) -> None:
        record.known = record.position = pages * self.page_tokens
