"""Text from tokens, held against the plain definition: decode everything at once, then cut."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.actors.text import TextWriter
from strata.messages import Delta, Row, Seq, TokenLogprob

SEQ = Seq(1)
PIECES = ("a", "b", "ab", "é", "€", "😀", "�")


class Tokens:
    """A vocabulary made of the pieces themselves: token n is the n-th piece."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def __call__(self, token: int) -> bytes:
        return self.pieces[token]

    def rows(self, *, logprobs: bool = False) -> list[Row]:
        return [Row(SEQ, n, logprob=-float(n) if logprobs else None) for n in range(len(self.pieces))]


def first_stop(text: str, stop: list[str]) -> tuple[int, int] | None:
    """(start, end) of the stop string that is complete first, the longest of those: the plain definition."""
    for end in range(1, len(text) + 1):
        lengths = [len(s) for s in stop if text[:end].endswith(s)]
        if lengths:
            return end - max(lengths), end
    return None


def cut(text: str, stop: list[str]) -> str:
    found = first_stop(text, stop)
    return text if found is None else text[: found[0]]


def could_become_one(text: str, stop: list[str]) -> int:
    """Length of the longest end of the text that begins a stop string."""
    return max((n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)


def as_text(delta: Delta | None) -> str:
    return "" if delta is None else delta.text


def texts(max_size: int = 12) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(PIECES), max_size=max_size).map("".join)


@st.composite
def pieces_of(draw: st.DrawFn, whole: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


stops = st.lists(texts(4).filter(bool), max_size=3)
byte_pieces = st.one_of(texts().map(str.encode), st.binary(max_size=16)).flatmap(pieces_of)


@given(byte_pieces, stops)
def test_the_pieces_add_up_to_the_whole_text_cut_at_its_first_stop_string(pieces: list[bytes], stop: list[str]) -> None:
    """B51: whatever the tokens were, and nothing held back is lost."""
    tokens = Tokens(pieces)
    writer = TextWriter(tokens, stop=stop)
    sent = "".join(as_text(writer.write([row])) for row in tokens.rows())
    sent += as_text(writer.close())
    whole = b"".join(pieces).decode("utf-8", "replace")
    assert sent == cut(whole, stop)
    assert writer.stopped == (first_stop(whole, stop) is not None)


@given(byte_pieces, stops)
def test_no_more_is_held_back_than_could_still_become_a_stop_string(pieces: list[bytes], stop: list[str]) -> None:
    """B51: after each token what was sent is the text so far but for the longest end that begins a stop string."""
    tokens = Tokens(pieces)
    writer = TextWriter(tokens, stop=stop)
    so_far, sent = codecs.getincrementaldecoder("utf-8")("replace"), ""
    text = ""
    for row in tokens.rows():
        text += so_far.decode(tokens(row.token))
        sent += as_text(writer.write([row]))
        if first_stop(text, stop):
            assert sent == cut(text, stop)
            return
        assert sent == text[: len(text) - could_become_one(text, stop)]


@given(byte_pieces, stops)
def test_rows_that_come_together_give_the_same_text_as_one_by_one(pieces: list[bytes], stop: list[str]) -> None:
    tokens = Tokens(pieces)
    together, singly = TextWriter(tokens, stop=stop), TextWriter(tokens, stop=stop)
    one = as_text(together.write(tokens.rows())) + as_text(together.close())
    other = "".join(as_text(singly.write([row])) for row in tokens.rows()) + as_text(singly.close())
    assert one == other
    assert together.tokens == singly.tokens


@given(byte_pieces)
def test_a_character_is_sent_whole_or_not_yet(pieces: list[bytes]) -> None:
    """B50: what is sent is always a beginning of the whole text."""
    tokens = Tokens(pieces)
    writer = TextWriter(tokens)
    whole, sent = b"".join(pieces).decode("utf-8", "replace"), ""
    for row in tokens.rows():
        sent += as_text(writer.write([row]))
        assert whole.startswith(sent)
    assert sent + as_text(writer.close()) == whole


@given(byte_pieces, stops)
def test_every_token_is_counted_once_and_told_once_with_its_text(pieces: list[bytes], stop: list[str]) -> None:
    tokens = Tokens(pieces)
    writer = TextWriter(tokens, stop=stop)
    deltas = [writer.write([row]) for row in tokens.rows(logprobs=True)] + [writer.close()]
    told = [t.bytes for d in deltas if d for t in d.logprobs]
    if not writer.stopped:
        assert told == pieces
        assert writer.tokens == len(pieces)
    else:
        assert told == pieces[: len(told)]
        assert len(told) <= writer.tokens <= len(pieces)
    assert sum(d.tokens for d in deltas if d) <= writer.tokens


def test_a_character_of_four_tokens_comes_with_the_last_of_them() -> None:
    """B50: not before, and not as replacement characters."""
    tokens = Tokens([bytes([b]) for b in "😀".encode()])
    writer = TextWriter(tokens)
    assert [as_text(writer.write([row])) for row in tokens.rows()] == ["", "", "", "😀"]
    assert writer.close() is None


def test_a_character_that_is_cut_short_by_the_end_is_one_replacement() -> None:
    """B50: at the end of the text too nothing is lost."""
    tokens = Tokens([b"a", "😀".encode()[:3]])
    writer = TextWriter(tokens)
    assert as_text(writer.write(tokens.rows())) == "a"
    assert as_text(writer.close()) == "�"


def test_a_stop_string_over_three_tokens_is_cut_and_what_follows_is_dropped() -> None:
    """B51: and the tokens after it are not counted."""
    tokens = Tokens([b"one S", b"TO", b"P two", b" three"])
    writer = TextWriter(tokens, stop=["STOP"])
    assert [as_text(writer.write([row])) for row in tokens.rows()] == ["one ", "", "", ""]
    assert writer.stopped
    assert writer.tokens == 3
    assert writer.close() is None


def test_held_text_that_did_not_become_a_stop_string_is_sent_at_once() -> None:
    tokens = Tokens([b"ST", b"O", b"RE"])
    writer = TextWriter(tokens, stop=["STOP"])
    assert [as_text(writer.write([row])) for row in tokens.rows()] == ["", "", "STORE"]


def test_a_delta_counts_the_tokens_that_came_since_the_last_one() -> None:
    tokens = Tokens([b"ST", b"O", b"RE"])
    writer = TextWriter(tokens, stop=["STOP"])
    deltas = [writer.write([row]) for row in tokens.rows()]
    assert deltas == [None, None, Delta("STORE", tokens=3)]


def test_tokens_that_are_no_text_are_hidden() -> None:
    tokens = Tokens([b"a", b"<|im_end|>", b"b"])
    writer = TextWriter(tokens, hidden={1})
    delta = writer.write(tokens.rows(logprobs=True))
    assert delta is not None
    assert delta.text == "ab"
    assert [told.text for told in delta.logprobs] == ["a", "b"]
    assert delta.tokens == 3


def test_no_stop_string_counts_before_the_least_number_of_tokens() -> None:
    """But one that is complete later, and began before, does."""
    tokens = Tokens([b"x.", b"y", b".", b"z."])
    writer = TextWriter(tokens, stop=["."], min_tokens=2)
    assert "".join(as_text(writer.write([row])) for row in tokens.rows()) == "x.y"
    straddling = Tokens([b"a", b"b", b"c"])
    writer = TextWriter(straddling, stop=["bc"], min_tokens=2)
    assert "".join(as_text(writer.write([row])) for row in straddling.rows()) == "a"


def test_a_stop_string_that_did_not_count_may_begin_the_one_that_does() -> None:
    tokens = Tokens([b"a", b"a", b"a"])
    writer = TextWriter(tokens, stop=["aa"], min_tokens=2)
    assert "".join(as_text(writer.write([row])) for row in tokens.rows()) == "a"


@pytest.mark.parametrize(("stop", "text"), [(["abcd", "bc"], "a"), (["bcd", "cd"], "a"), (["d", "cd"], "ab")])
def test_of_several_stop_strings_the_first_complete_one_counts_and_of_those_the_longest(
    stop: list[str], text: str
) -> None:
    tokens = Tokens([b"abcd"])
    writer = TextWriter(tokens, stop=stop)
    assert as_text(writer.write(tokens.rows())) == text


def test_a_tokens_own_bytes_are_told_even_if_they_are_no_character() -> None:
    euro = "€".encode()
    tokens = Tokens([euro[:1], euro[1:]])
    writer = TextWriter(tokens)
    row = Row(SEQ, 0, logprob=-0.5, top=(TokenLogprob(0, -0.5), TokenLogprob(1, -1.5)))
    delta = writer.write([row, Row(SEQ, 1, logprob=-0.25)])
    assert delta is not None
    assert delta.text == "€"
    first, second = delta.logprobs
    assert (first.bytes, first.text, first.logprob) == (euro[:1], "�", -0.5)
    assert [likely.bytes for likely in first.top] == [euro[:1], euro[1:]]
    assert (second.bytes, second.logprob) == (euro[1:], -0.25)


def test_the_token_that_a_stop_string_cut_into_is_told_and_those_inside_it_are_not() -> None:
    tokens = Tokens([b"one S", b"TO", b"P"])
    writer = TextWriter(tokens, stop=["STOP"])
    deltas = [writer.write([row]) for row in tokens.rows(logprobs=True)]
    assert [told.bytes for d in deltas if d for told in d.logprobs] == [b"one S"]
