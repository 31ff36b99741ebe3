"""What the engine knows of one sequence: its tokens, how far it is, its pages, and the chunk that is half done.

A room of its own because it is all that a parked sequence is.  Knows no step, no other sequence and no device.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Set
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
from attrs import define
from numpy.typing import NDArray

from strata.draws import Draw
from strata.engine.draft import Drafter, Zeal
from strata.engine.sampling import Choice, choose, draw_of, needs_logits
from strata.errors import SequenceFailed
from strata.messages import Open, Row
from strata.models.architecture import Answer

Slices = Generator[None, None, NDArray[np.float32]]


@define
class HalfChunk:
    """A chunk that has begun.  Its generator stands between two slices, its activations lie in the workspace."""

    index: int
    """On the sequence's grid."""
    start: int
    end: int
    total: int
    """Slices."""
    slices: Slices
    workspace: Any
    """The model's own, opaque here."""
    done: int = 0

    def run_slice(self) -> NDArray[np.float32] | None:
        """Runs one slice.  The logits of the chunk's last token (float32), or None while slices are left."""
        try:
            next(self.slices)
        except StopIteration as end:
            self.done = self.total
            logits: NDArray[np.float32] = end.value
            return logits
        self.done += 1
        return None


class Sequence:
    """One sequence.  `position` tokens have their keys and values written; the models see it through `pages`."""

    def __init__(self, opened: Open, *, chunk_tokens: int, page_tokens: int, speculate: int = 0) -> None:
        """`speculate`: how many tokens it may offer beyond its next one."""
        self.seq = opened.seq
        self.prompt = opened.tokens
        self.sampling = opened.sampling
        self.written = list(opened.written)
        self.pages: list[int] = []
        """One that lies in the arena has a number behind those of the device."""
        self.away = 0
        """How many of its pages lie in the arena."""
        self.position = opened.known
        self.chunk: HalfChunk | None = None
        self.said_wants = False
        """Whether `Wants` was said since the last grant."""
        self.drafter = Drafter(self.prompt, self.written) if speculate else None
        self.zeal = Zeal(speculate)
        self._chunk_tokens = chunk_tokens
        self._page_tokens = page_tokens

    def __repr__(self) -> str:
        state = f"{self.position} of {len(self.prompt)} read" if self.unread else f"{len(self.written)} written"
        return f"<Sequence {self.seq}: {state}, {len(self.pages)} pages>"

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return (*self.prompt, *self.written)

    @property
    def repeats(self) -> bool:
        """Whether the token after the next decode step is written already, by an engine before this one."""
        return self.position < len(self.prompt) + len(self.written) - 1

    @property
    def repeated(self) -> list[int]:
        """What is written, as far as this engine is with it."""
        return self.written[: max(0, self.position - len(self.prompt) + 1)]

    @property
    def unread(self) -> bool:
        """Whether some of the prompt is still to be read."""
        return self.position < len(self.prompt)

    @property
    def chunk_end(self) -> int:
        """Where the chunk that is under way, or the next one, ends.  The grid starts at 0, whatever is known."""
        return min((self.position // self._chunk_tokens + 1) * self._chunk_tokens, len(self.prompt))

    @property
    def chunk_index(self) -> int:
        return self.position // self._chunk_tokens

    @property
    def on_device(self) -> bool:
        """Whether all of its pages are there: without one of them it can't run."""
        return self.away == 0

    def has_pages(self) -> bool:
        """Whether its pages hold what comes next: the whole of a chunk, or one token."""
        end = self.chunk_end if self.unread else self.position + 1
        return end <= len(self.pages) * self._page_tokens

    @property
    def next_input(self) -> int:
        """What is decoded next: the last that it wrote, but for one that repeats what was written before."""
        return self.written[self.position - len(self.prompt)]

    def reach(self, position: int) -> None:
        """The keys and values below `position` are written."""
        self.position = position
        if self.drafter is not None:
            self.drafter.reach(position)

    def offer(self, most: int, context: int) -> tuple[int, ...]:
        """At most so many tokens that may follow its next input, as far as pages, `max_tokens` and context go.

        Beside what is repeated nothing is offered.
        """
        if self.drafter is None or self.repeats:
            return ()
        rows_left = min(
            len(self.pages) * self._page_tokens - self.position,
            self.sampling.max_tokens - len(self.written),
            context - 1 - self.position,
        )
        return self.drafter.offer(min(most, self.zeal.count, rows_left - 1))

    def next_draw(self, end_ids: Set[int]) -> Draw | None:
        """How its next token is drawn, and those after it.  None: their logits are wanted for more than that."""
        return None if needs_logits(self.sampling, len(self.written), end_ids) else self._draw

    @cached_property
    def _draw(self) -> Draw:
        return draw_of(self.sampling)

    def next_tokens(
        self, answers: Iterable[Answer], offered: Iterable[int], end_ids: Set[int], context: int
    ) -> list[Choice]:
        """The tokens after the last one, each from its row, up to the first that is not the one offered for the next
        row, or that is the last of all.  Changes nothing.  Raises SequenceFailed where there is not even one.
        """
        written, choices = self.written, list[Choice]()
        for row, follows in zip_longest(answers, offered):
            try:
                choices.append(choose(row, self.sampling, prompt=self.prompt, written=written, end_ids=end_ids))
            except SequenceFailed:
                # What was chosen before it counts; the same comes again when its row is the first.
                if not choices:
                    raise
                break
            token = choices[-1].token
            if token != follows:
                break
            written = [*written, token]
            if self._end(token, len(written), end_ids, context):
                break
        return choices

    def next_token(self, logits: NDArray[np.float32], end_ids: Set[int]) -> Choice:
        """The token after the last one.  Changes nothing.  Raises SequenceFailed."""
        return choose(logits, self.sampling, prompt=self.prompt, written=self.written, end_ids=end_ids)

    def write(self, choice: Choice, end_ids: Set[int], context: int) -> Row:
        """Takes the chosen token as its next; the row says whether it was the last (`context`: tokens)."""
        self.written.append(choice.token)
        ended = self._end(choice.token, len(self.written), end_ids, context)
        return Row(self.seq, choice.token, ended, choice.logprob, choice.top)

    def _end(self, token: int, written: int, end_ids: Set[int], context: int) -> Literal["stop", "length"] | None:
        """Whether the token, with which so many are written, is the last."""
        if token in end_ids and not self.sampling.ignore_eos:
            return "stop"
        full = len(self.prompt) + written >= context
        return "length" if full or written >= self.sampling.max_tokens else None


def check_tokens(opened: Open, *, vocab_size: int, context: int, page_tokens: int) -> None:
    """Raises SequenceFailed if the engine can't begin with this."""
    if not opened.tokens:
        raise SequenceFailed("the prompt is empty")
    if len(opened.tokens) >= context:
        raise SequenceFailed(f"the prompt's {len(opened.tokens)} tokens leave no room in a context of {context}")
    if not all(0 <= token < vocab_size for token in (*opened.tokens, *opened.written)):
        raise SequenceFailed(f"a token of the prompt is not one of the model's {vocab_size}")
    if len(opened.tokens) + len(opened.written) >= context or len(opened.written) >= opened.sampling.max_tokens:
        raise SequenceFailed(f"with {len(opened.written)} tokens written it has ended already")
    # Whole pages, because what is behind the known beginning is written, and a shared page never is.
    if opened.known != len(opened.pages) * page_tokens or opened.known >= len(opened.tokens):
        raise SequenceFailed(f"{opened.known} known tokens do not fit {len(opened.pages)} pages and the prompt")


def check_shared(opened: Open, holders: Iterable[tuple[int, Sequence]], page_tokens: int) -> None:
    """Raises SequenceFailed if one of those that hold its pages now shows that they are not what it knows.

    `holders`: a place in its pages, and a sequence that holds the page.  What a page holds that nobody has open is the
    ledger's to know.
    """
    ends: dict[Sequence, int] = {}
    for place, holder in holders:
        if holder.pages[place : place + 1] != [opened.pages[place]]:
            raise SequenceFailed(f"a known page lies elsewhere in sequence {holder.seq}, which holds it too")
        ends[holder] = (place + 1) * page_tokens
    for holder, end in ends.items():
        # Only what was read: decoding computes the same in another order, and its bits differ.
        if end > holder.position or holder.prompt[:end] != opened.tokens[:end]:
            raise SequenceFailed(f"sequence {holder.seq} has not read to {end} what a known page is to hold")
