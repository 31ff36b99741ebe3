"""The banker's test, against every order that there is."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from strata.scheduling.banker import is_safe


def can_all_end(free: int, order: tuple[tuple[int, int], ...]) -> bool:
    for rest, held in order:
        if rest > free:
            return False
        free += held
    return True


@given(free=st.integers(0, 9), accounts=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), max_size=5))
def test_it_is_safe_if_and_only_if_some_order_lets_all_of_them_end(free: int, accounts: list[tuple[int, int]]):
    assert is_safe(free, accounts) == any(can_all_end(free, order) for order in permutations(accounts))


def test_what_was_lent_twice_is_not_safe():
    assert not is_safe(-1, [])
