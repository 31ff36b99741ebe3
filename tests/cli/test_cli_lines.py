"""Text in pieces, broken between words: the same lines whatever the pieces were."""

from __future__ import annotations

import textwrap
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strata.cli.lines import Lines

WORDS = st.lists(st.text("ab.-", min_size=1, max_size=12), max_size=30)


def shown(text: str, width: int | None, cuts: list[int] = ()) -> str:
    """In pieces that end at these places."""
    lines, places = Lines(width), sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return "".join(lines.take(text[a:b]) for a, b in pairwise(places)) + lines.rest()


@given(WORDS, st.integers(12, 40), st.lists(st.integers(0, 400)))
def test_words_are_kept_whole_and_lines_are_as_long_as_can_be(words: list[str], width: int, cuts: list[int]) -> None:
    expected = textwrap.wrap(" ".join(words), width, break_long_words=False, break_on_hyphens=False)
    assert shown(" ".join(words), width, cuts).split("\n") == (expected or [""])


def test_lines_that_end_by_themselves_and_their_indents_stay() -> None:
    assert shown("one\n\n    two three\n  four", 12) == "one\n\n    two\nthree\n  four"


def test_a_word_longer_than_a_line_is_not_held_back() -> None:
    lines = Lines(5)
    assert lines.take("a bbbb") == "a"
    assert lines.take("bbbb") == "\nbbbbbbbb"
    assert lines.take(" c") + lines.rest() == "\nc"


def test_wide_characters_take_two_columns() -> None:
    assert shown("日本 語で", 6) == "日本\n語で"


def test_what_is_no_terminal_gets_the_pieces_as_they_are() -> None:
    lines = Lines(None)
    assert [lines.take("a b"), lines.take("c "), lines.rest()] == ["a b", "c ", ""]
