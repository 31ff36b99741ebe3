"""The names of what prompts begin with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.scheduling.prefix import BYTES, chain

prompts = st.lists(st.integers(0, 3), max_size=40).map(tuple)


@given(one=prompts, other=prompts, page=st.integers(1, 9))
def test_equal_names_mean_equal_tokens_from_the_begin_on(one: tuple[int, ...], other: tuple[int, ...], page: int):
    first, second = chain(one, page), chain(other, page)
    assert len(first) == len(one) // page
    for place, (mine, theirs) in enumerate(zip(first, second, strict=False), 1):
        assert (mine == theirs) == (one[: place * page] == other[: place * page])


def test_a_page_of_the_same_tokens_has_another_name_behind_another_page():
    name, again = chain((5, 5, 5, 5), 2)
    assert name != again
    assert len(name) == BYTES


def test_what_is_no_token_has_no_name():
    with pytest.raises(OverflowError):
        chain((1, -1), 2)
