"""What a scripted engine answers, and what goes wrong with it.  Plain values; knows no step and no time."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from attrs import field, frozen

from strata.messages import Open
from strata.testing.language import END, ByteTokenizer

_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz "


def letters(opened: Open, index: int) -> int:
    """A letter that the prompt and its place in the answer alone decide, and the seed where text is sampled."""
    start = zlib.crc32(array("q", opened.tokens).tobytes())
    seed = opened.sampling.seed if opened.sampling.temperature > 0 else 0
    return _LETTERS[zlib.crc32(f"{seed} {index}".encode(), start) % len(_LETTERS)]


@frozen(kw_only=True)
class Script:
    """Who is answered what.  An answer ends with an end token, or earlier by `max_tokens`."""

    by_seq: Mapping[int, Sequence[int]] = field(factory=dict)
    """Token ids for a sequence by its number: the first submitted in a runtime is 1."""
    by_text: Mapping[str, str] = field(factory=dict)
    """The answer to the first of these texts that stands in the prompt."""
    otherwise: Callable[[Open, int], int] = letters
    """The n-th token (from 0) of everybody else's answer, which goes on until `max_tokens` unless it gives 256."""

    def answer(self, opened: Open) -> Callable[[int], int]:
        """The n-th token of its answer, as a function of n."""
        fixed = self._fixed(opened)
        if fixed is None:
            return lambda index: self.otherwise(opened, index)
        return lambda index: fixed[index] if index < len(fixed) else END

    def _fixed(self, opened: Open) -> Sequence[int] | None:
        if opened.seq in self.by_seq:
            return self.by_seq[opened.seq]
        if not self.by_text:
            return None
        prompt = ByteTokenizer().decode(opened.tokens)
        return next((list(answer.encode()) for text, answer in self.by_text.items() if text in prompt), None)


@frozen(kw_only=True)
class Fault:
    """The whole engine fails, in the place of its n-th slice or step; with neither named, at its next boundary."""

    does: Literal["die", "raise", "vanish", "hang"] = "die"
    """`die`: it says EngineDied.  `raise`: an exception comes out of its host.  `vanish`: the host returns without a
    word.  `hang`: nothing more ever comes, and it has to be cancelled."""
    slice: int | None = None
    """Counted over the engine's life, from 1."""
    step: int | None = None
    """Counted over the engine's life, from 1."""
    reason: str = "it was told to"

    def is_due(self, slice: int | None, step: int | None) -> bool:
        """At a boundary after which this slice, or this step, or (both None) nothing comes."""
        at_once = self.slice is None and self.step is None
        return (
            at_once or (self.slice is not None and self.slice == slice) or (self.step is not None and self.step == step)
        )


@frozen(kw_only=True)
class RowFault:
    """One sequence fails, instead of getting the `index`-th token of its answer (from 0)."""

    seq: int
    index: int = 0
    error: str = "it was told to"
