"""Text to tokens and back: what the vocabulary's bytes are, and that none is lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import InvalidRequest, ModelError
from strata.models import open_model
from strata.models.tokenizer import Tokenizer
from strata.models.vocabulary import Vocabulary, tokenizer_json
from strata.testing.tiny_model import SPECIAL, merges, vocabulary

TEXTS = {
    "english": "The quick brown fox, isn't it?  They'll say 'yes' -- twice!",
    "digits": "In 2024, 3.14159 and 1 000 000; 0x7fff, 1st",
    "emoji": "👍🏽 👩‍👩‍👧‍👦 🇫🇷 🏴‍☠️ naïve 😀😀",
    "cjk": "東京は日本の首都です。 한국어 漢字かな交じり文",
    "rtl and combining": "שלום עולם مرحبا e\u0301 n\u0303 ก็",
    "code": "def f(x):\n\tif x:\n        return {'a': [1, 2]}\r\n\n\n#\tend  \n",
    "long whitespace": " " * 4097 + "\n" * 33 + "\t \t" * 50 + "x",
    "unusual spaces": "a\u00a0b\u2003c\u200bd\u3000e\u0085f\u2028g",
    "empty": "",
}


def round_trip(tokenizer: Tokenizer, text: str) -> bytes:
    return b"".join(map(tokenizer.token_bytes, tokenizer.encode(text)))


@pytest.fixture(scope="module")
def smollm(default_model_path: Path) -> Tokenizer:
    return open_model(default_model_path).tokenizer


@pytest.fixture(scope="module")
def tiny(tiny_model_path: Path) -> Tokenizer:
    return open_model(tiny_model_path).tokenizer


@pytest.mark.parametrize("name", TEXTS)
def test_the_bytes_of_the_tokens_of_a_text_are_the_text(smollm: Tokenizer, tiny: Tokenizer, name: str) -> None:
    for tokenizer in (smollm, tiny):
        assert round_trip(tokenizer, TEXTS[name]) == TEXTS[name].encode()


@given(text=st.text())
@settings(max_examples=300, deadline=None)
def test_any_text_comes_back_whole_where_every_byte_has_a_token(tiny: Tokenizer, text: str) -> None:
    assert round_trip(tiny, text) == text.encode()


@given(text=st.text(st.characters(exclude_categories=("Cc", "Cs", "Co", "Cn")) | st.sampled_from("\n\t\r 0123456789")))
@settings(max_examples=300, deadline=None)
def test_any_printable_text_comes_back_whole_from_the_default_model(smollm: Tokenizer, text: str) -> None:
    # Of four-byte characters its vocabulary lacks only lead bytes that belong to planes without characters.
    assert round_trip(smollm, text) == text.encode()


def test_bytes_that_the_vocabulary_lacks_are_left_out(smollm: Tokenizer) -> None:
    assert round_trip(smollm, "a\x04b") == b"ab"


def test_each_digit_is_a_token_of_its_own_whatever_the_merges_say() -> None:
    given = _vocabulary()
    tokens, merged = (*given.tokens, "20", "Ġ2"), (*given.merges, "2 0", "Ġ 2")
    for pre, expected in (("smollm", ["Ġ", "2", "0", "2", "4"]), ("gpt-2", ["Ġ", "20", "2", "4"])):
        vocabulary = evolve(given, pre=pre, tokens=tokens, kinds=(*given.kinds, 1, 1), merges=merged)
        tokenizer = Tokenizer(tokenizer_json(vocabulary), special=vocabulary.special)
        assert [tokenizer.token_text(token) for token in tokenizer.encode(" 2024")] == expected


def test_a_special_token_is_its_own_text_and_no_stand_in_for_bytes() -> None:
    given = _vocabulary()
    vocabulary = evolve(given, tokens=("<é|Ġ>", *given.tokens[1:]))
    tokenizer = Tokenizer(tokenizer_json(vocabulary), special=vocabulary.special)
    assert tokenizer.encode("<é|Ġ>") == [0]
    assert tokenizer.token_bytes(0) == "<é|Ġ>".encode()


def test_a_token_may_be_part_of_a_character(smollm: Tokenizer) -> None:
    """B50: what the tokens of one character give is its bytes, in order, and none of them alone is text."""
    pieces = [smollm.token_bytes(token) for token in smollm.encode("𝛁")]
    assert len(pieces) > 1
    assert b"".join(pieces) == "𝛁".encode()


def test_special_tokens_are_recognised_in_a_rendered_text_and_give_their_own_text(tiny: Tokenizer) -> None:
    ids = tiny.encode("<|im_start|>user\nhi<|im_end|>")
    assert ids[0] == SPECIAL.index("<|im_start|>")
    assert ids[-1] == SPECIAL.index("<|im_end|>")
    assert tiny.token_bytes(ids[-1]) == b"<|im_end|>"
    assert tiny.eos_ids == {ids[-1]}


def test_without_special_a_special_tokens_text_is_plain_text(tiny: Tokenizer, smollm: Tokenizer) -> None:
    for tokenizer in (tiny, smollm):
        ids = tokenizer.encode("<|im_end|>", special=False)
        assert not tokenizer.eos_ids & set(ids)
        assert b"".join(map(tokenizer.token_bytes, ids)) == b"<|im_end|>"
        # And the switch did not stick.
        assert set(tokenizer.encode("<|im_end|>")) == tokenizer.eos_ids


def test_a_start_token_goes_first_where_the_model_wants_one_and_never_twice() -> None:
    text = tokenizer_json(_vocabulary())
    tokenizer = Tokenizer(text, special=frozenset({0, 1, 2}), bos_id=1, add_bos=True)
    assert tokenizer.encode("hello")[0] == 1
    assert tokenizer.encode("<|im_start|>hello") == tokenizer.encode("hello")
    assert 1 not in tokenizer.encode("hello", special=False)


def test_a_lone_surrogate_is_the_clients_mistake(tiny: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="half a character"):
        tiny.encode("a\ud800b")


@pytest.mark.parametrize(("prefix", "first"), [(True, "▁the"), (False, "the")])
def test_pieces_are_merged_by_their_scores_and_a_text_may_begin_with_a_space(prefix: bool, first: str) -> None:
    """Of SentencePiece: `th` goes before `he`; a character without a piece is its bytes, however many."""
    pieces = ("<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁theqr", "he", "th", "the", "▁the", "▁q")
    scores = {"he": -2.0, "th": -1.0, "the": -3.0, "▁the": -4.0, "▁q": -5.0}
    vocabulary = Vocabulary(
        model="llama",
        pre="",
        tokens=pieces,
        kinds=(2, *[6] * 256, *[1] * (len(pieces) - 257)),
        merges=(),
        scores=tuple(scores.get(piece, 0.0) for piece in pieces),
        space_prefix=prefix,
    )
    tokenizer = Tokenizer(tokenizer_json(vocabulary), special=vocabulary.special, byte_fallback=True)
    ids = tokenizer.encode("the qthe\U0001f600\n")
    assert [tokenizer.token_text(token) for token in ids] == [
        *(first, "▁q", "the"),
        *("<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0x0A>"),
    ]
    assert b"".join(map(tokenizer.token_bytes, ids)).strip().decode() == "the qthe\U0001f600"


@pytest.mark.parametrize("token", [-1, 307, 1 << 40])
def test_a_token_outside_the_vocabulary_is_an_error_and_not_another_token(tiny: Tokenizer, token: int) -> None:
    assert tiny.vocab_size == 307
    with pytest.raises((IndexError, OverflowError)):
        tiny.token_bytes(token)


def test_every_token_has_bytes(smollm: Tokenizer) -> None:
    assert all(smollm.token_bytes(token) for token in range(smollm.vocab_size))


def test_no_token_stands_for_more_bytes_than_the_longest(smollm: Tokenizer, tiny: Tokenizer) -> None:
    assert smollm.longest_token == 81
    assert tiny.longest_token == len("<|endoftext|>")


def test_other_threads_run_while_a_long_text_is_cut_into_tokens(smollm: Tokenizer) -> None:
    done = threading.Event()
    thread = threading.Thread(target=lambda: (smollm.encode("the quick brown fox " * 20_000), done.set()))
    thread.start()
    rounds = 0
    while not done.wait(0.001):
        rounds += 1
    thread.join()
    # Some 100 ms of work; were the interpreter held meanwhile, there would be one or two rounds.
    assert rounds > 5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": "bert"}, "the tokenizer 'bert'"),
        ({"model": "llama", "pre": ""}, "as many scores as tokens"),
        ({"pre": "deepseek-coder"}, "the pre-tokenizer 'deepseek-coder'"),
        ({"kinds": (1,)}, "as many kinds as tokens"),
        ({"merges": ("zz zz",)}, "merges do not fit"),
        ({"tokens": ("a",) * 307}, "the same token twice"),
    ],
)
def test_a_kind_of_tokenizer_that_is_not_supported_is_refused_by_name(change: dict[str, object], says: str) -> None:
    """B37"""
    with pytest.raises(ModelError, match=says):
        tokenizer_json(_vocabulary(**change))


def _vocabulary(**change: object) -> Vocabulary:
    tokens = tuple(vocabulary())
    kinds = (3, 3, 3, *[1] * (len(tokens) - 3))
    given = {"model": "gpt2", "pre": "smollm", "tokens": tokens, "kinds": kinds, "merges": merges()}
    return Vocabulary(**{**given, **change})
