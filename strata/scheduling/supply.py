"""Which pages each request gets, and when.  Knows the ledger and how far each request is; not who runs, nor why.

What somebody has read of a prompt that begins alike needn't be read again: its pages are shared (R7).
"""

from __future__ import annotations

from strata.messages import Grant
from strata.scheduling.decision import Opening
from strata.scheduling.pages import Pages
from strata.scheduling.record import Record


class Supply:
    """Out of `pages` of `page_tokens` tokens.  Without `shares` every prompt is read whole."""

    def __init__(self, pages: int, page_tokens: int, *, shares: bool) -> None:
        self.pages = Pages(pages)
        self._page_tokens = page_tokens
        self._shares = shares

    def __repr__(self) -> str:
        return f"<Supply {self.pages} of {self._page_tokens} tokens>"

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self._page_tokens)

    def look_up(self, record: Record) -> None:
        """How much of a queued one's prompt is known now; it holds none of it."""
        self._know(record, len(self.pages.known(self._prefix(record))))

    def start(self, record: Record) -> Opening:
        """Reserve what it takes at worst, and hold what is known of its prompt."""
        known = self.pages.reserve(record.seq, record.worst, self._prefix(record))
        self._know(record, len(known))
        return Opening(record.seq, known, record.known)

    def grant(self, record: Record) -> Grant | None:
        """Pages up to the end of the chunk after this one; for an answer one page more than its next token needs."""
        if record.reads:
            end = min(record.prompt_tokens, record.chunk_end + record.chunk_tokens)
            goal = self.pages_for(end) + (end == record.prompt_tokens)
        else:
            goal = self.pages_for(record.prompt_tokens + record.written) + 1
        held = self.pages.count(record.seq)
        if record.wants_since is not None:
            goal, record.wants_since = max(goal, held + 1), None
        number = min(goal, record.worst) - held
        return Grant(record.seq, self.pages.grant(record.seq, number)) if number > 0 else None

    def read(self, record: Record) -> None:
        """What it has read whole may be read by others.  Only reading gives the same bits to all; answers may not."""
        if self._shares:
            self.pages.share(record.seq, record.prefix[: record.position // self._page_tokens])

    def end(self, record: Record) -> None:
        # Its pages are free at once: messages are handled in order, so the next owner's come after its close.
        self.pages.release(record.seq)

    def forget(self) -> None:
        """The engine is gone, and what it knew.  Nobody holds anything."""
        self.pages = Pages(self.pages.total)

    def _prefix(self, record: Record) -> tuple[bytes, ...]:
        """What may be known of a prompt: all but its last token, whose logits are needed."""
        return record.prefix[: (record.prompt_tokens - 1) // self._page_tokens] if self._shares else ()

    def _know(self, record: Record, pages: int) -> None:
        record.known = record.position = pages * self._page_tokens
