"""What may follow: the tokens that came after the same few tokens before, and how many of them are worth offering.

A room of its own because it decides no token: what is offered is computed and then chosen as ever, or dropped.  Pure;
knows no model and no step.  Looking up what a text itself has said before is "prompt lookup decoding"
(https://github.com/apoorvumang/prompt-lookup-decoding); offering runs of it as further rows is speculative decoding
(https://arxiv.org/abs/2211.17192) with a draft that costs nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

LOOK: Final = 8
"""Places that are compared, the latest first."""

LONGEST: Final = 8
"""Tokens before a place that are compared; it must share at least PAIR with the end."""

PAIR: Final = 2

_LONGEST_REST: Final = 5
"""As a power of two, steps that nothing is offered in after a miss: one row too many in 32 steps is not noticed."""


class Drafter:
    """Of one sequence.  `written` is the sequence's own list, which grows.

    Each token is taken in once and each offer looks at LOOK places, so the work for a token is bounded.  It takes about
    100 bytes a token, far less than keys and values do.
    """

    def __init__(self, prompt: Sequence[int], written: Sequence[int]) -> None:
        self._prompt = prompt
        self._written = written
        self._latest: dict[int, int] = {}
        """By pair of tokens: the last place that it stands before."""
        self._earlier = array("q", (0,) * PAIR)
        """By place: the one before it that has the same pair before it; 0: none."""

    def __repr__(self) -> str:
        return f"<Drafter of {len(self._earlier)} places>"

    def reach(self, position: int) -> None:
        """Take in what stands before `position`, and the place itself."""
        for place in range(len(self._earlier), position + 1):
            pair = self._pair(place)
            self._earlier.append(self._latest.get(pair, 0))
            self._latest[pair] = place

    def offer(self, most: int) -> tuple[int, ...]:
        """Up to `most` tokens that may follow the one at the last place that was reached; none, or all of them.

        They are those that followed the longest run of tokens that is at the end, too; of equals the latest.  Where
        they run into the end they go on with themselves, so that a text that repeats is offered at any length.
        """
        end = len(self._earlier)
        place = self._best(end) if end > PAIR and most > 0 else 0
        if not place:
            return ()
        offered: list[int] = []
        for at in range(place, place + most):
            offered.append(self._token(at) if at < end else offered[at - end])
        return tuple(offered)

    def state(self) -> bytes:
        """For fingerprints: it follows from the tokens and the position alone."""
        return self._earlier.tobytes()

    def _best(self, end: int) -> int:
        """The place before which most is as it is before `end`; 0: none."""
        place = self._latest.get(self._pair(end), 0)
        best, longest, looks = place, 0, LOOK
        while place and looks:
            length = self._alike(place, end)
            if length > longest:
                best, longest = place, length
            place, looks = self._earlier[place], looks - 1
        return best

    def _alike(self, place: int, end: int) -> int:
        """How many tokens before the two are the same."""
        length = PAIR
        while length < min(LONGEST, place) and self._token(place - 1 - length) == self._token(end - 1 - length):
            length += 1
        return length

    def _pair(self, place: int) -> int:
        return self._token(place - 2) << 32 | self._token(place - 1)

    def _token(self, at: int) -> int:
        known = len(self._prompt)
        return self._prompt[at] if at < known else self._written[at - known]


class Zeal:
    """How many tokens to offer, by what became of those before: 1 at first, then twice as many for as long as all are
    taken, up to `limit`; as many as were taken where some were; and none for a while after a miss, twice as long after
    each that follows.  So a text that never repeats costs next to nothing.

    It follows the steps that the sequence took part in, and so the schedule; that changes when a token comes, never
    which.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = min(1, limit)
        self._misses = 0
        self._rest = 0

    def __repr__(self) -> str:
        return f"<Zeal for {self.count} of {self._limit}>"

    @property
    def count(self) -> int:
        return 0 if self._rest else self._count

    def stepped(self, offered: int, taken: int) -> None:
        """A step in which so many were offered, and so many of them taken."""
        if not offered:
            self._rest = max(0, self._rest - 1)
        elif not taken:
            self._misses = min(self._misses + 1, _LONGEST_REST)
            self._count, self._rest = 1, 2**self._misses - 1
        else:
            self._misses = 0
            self._count = min(self._limit, max(1, 2 * taken if taken == offered else taken))
