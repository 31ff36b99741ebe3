"""From tokens to text.  Knows bytes, characters and stop strings; no request, no actor, no engine.

A token is bytes, and its bytes need not be whole characters.  A stop string is characters, and may begin in one token
and end in another.  Both are found as the tokens come, and the text is the one that the whole answer, decoded at once,
would have: up to its first stop string, whatever the pieces were.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Container, Sequence

from attrs import define, frozen

from strata.messages import Delta, Row, TextLogprob


class _Matcher:
    """How much of one string stands at the end of the text so far (Knuth, Morris and Pratt, 1977)."""

    def __init__(self, string: str) -> None:
        self.string = string
        self.matched = 0
        self._shorter = _borders(string)

    def step(self, character: str) -> bool:
        """Whether this character completes the string."""
        while self.matched and self.string[self.matched] != character:
            self.matched = self._shorter[self.matched - 1]
        if self.string[self.matched] == character:
            self.matched += 1
        if self.matched < len(self.string):
            return False
        # What is held from here on could still become the next one, not this one.
        self.matched = self._shorter[-1]
        return True


def _borders(string: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0]
    for character in string[1:]:
        length = borders[-1]
        while length and string[length] != character:
            length = borders[length - 1]
        borders.append(length + (string[length] == character))
    return borders


@frozen
class Found:
    """A stop string, `length` characters long, that ends `after` characters of the text that was fed."""

    after: int
    length: int


class StopFinder:
    """The first of several strings in a text that comes in pieces.

    First is the one that is complete first; of those that are complete at the same character, the longest.  So what
    is found does not depend on how the text was cut into pieces.
    """

    def __init__(self, strings: Sequence[str] = ()) -> None:
        self._matchers = tuple(_Matcher(string) for string in strings)

    @property
    def held(self) -> int:
        """Characters at the end of the text that could still become a stop string."""
        return max((matcher.matched for matcher in self._matchers), default=0)

    def feed(self, text: str, *, counts: bool = True) -> Found | None:
        """Read on, up to the first stop string.  With `counts` false one that is complete in `text` is passed over."""
        if not self._matchers:
            return None
        for index, character in enumerate(text):
            complete = [len(m.string) for m in self._matchers if m.step(character)]
            if complete and counts:
                return Found(after=index + 1, length=max(complete))
        return None


@frozen
class _Told:
    """A token's log-probability that waits for its text: where in the answer that begins and ends (characters)."""

    start: int
    end: int
    logprob: TextLogprob


@define
class _Answer:
    """The text so far: `sent` characters are out, `held` waits."""

    sent: int = 0
    held: str = ""

    @property
    def length(self) -> int:
        return self.sent + len(self.held)


class TextWriter:
    """One answer, from its rows to its deltas.

    `hidden` are tokens that are no text (end of turn and the like).  Until `min_tokens` are written no stop string
    counts.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        *,
        hidden: Container[int] = frozenset(),
        stop: Sequence[str] = (),
        min_tokens: int = 0,
    ) -> None:
        self._token_bytes = token_bytes
        self._hidden = hidden
        self._finder = StopFinder(stop)
        self._min_tokens = min_tokens
        # The incremental decoder gives, in sum, what decoding the whole would: one U+FFFD where that has one.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._answer = _Answer()
        self._told: list[_Told] = []
        self._untold_tokens = 0
        self.tokens = 0
        """Tokens of the answer, the one that completed a stop string included, those after it not."""
        self.stopped = False
        """A stop string was found; what comes after it is dropped."""

    def write(self, rows: Sequence[Row]) -> Delta | None:
        """The text that these rows set free, if any."""
        for row in rows:
            if self.stopped:
                break
            self._take(row)
        return self._release(0 if self.stopped else self._finder.held)

    def close(self) -> Delta | None:
        """The rest: nothing held can become anything else now."""
        if not self.stopped:
            self._append(self._decoder.decode(b"", final=True))
        return self._release(0)

    def _take(self, row: Row) -> None:
        self.tokens += 1
        self._untold_tokens += 1
        if row.token in self._hidden:
            return
        start = self._answer.length
        text = self._decoder.decode(self._token_bytes(row.token))
        if row.logprob is not None:
            self._told.append(_Told(start, start + len(text), self._as_text(row, row.logprob)))
        self._append(text)

    def _append(self, text: str) -> None:
        self._answer.held += text
        found = self._finder.feed(text, counts=self.tokens > self._min_tokens)
        if found is not None:
            self._cut(len(text) - found.after + found.length)

    def _cut(self, characters: int) -> None:
        """Take the stop string and what came with it off the end, and the tokens that began in it."""
        answer = self._answer
        answer.held = answer.held[: len(answer.held) - characters]
        self.stopped = True
        while self._told and self._told[-1].start >= answer.length:
            self._told.pop()

    def _release(self, held: int) -> Delta | None:
        answer = self._answer
        free = len(answer.held) - held
        text, answer.held = answer.held[:free], answer.held[free:]
        answer.sent += len(text)
        logprobs = tuple(self._tellable())
        if not text and not logprobs:
            return None
        tokens, self._untold_tokens = self._untold_tokens, 0
        return Delta(text=text, tokens=tokens, logprobs=logprobs)

    def _tellable(self) -> list[TextLogprob]:
        """The log-probabilities of tokens whose text is out; after a cut, also of the one that was cut into."""
        tellable = []
        while self._told and (self.stopped or self._told[0].end <= self._answer.sent):
            tellable.append(self._told.pop(0).logprob)
        return tellable

    def _as_text(self, row: Row, logprob: float) -> TextLogprob:
        top = tuple(self._token_text(likely.token, likely.logprob) for likely in row.top)
        return self._token_text(row.token, logprob, top)

    def _token_text(self, token: int, logprob: float, top: tuple[TextLogprob, ...] = ()) -> TextLogprob:
        raw = self._token_bytes(token)
        return TextLogprob(text=raw.decode("utf-8", "replace"), bytes=raw, logprob=logprob, top=top)
