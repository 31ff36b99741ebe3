"""The tree against a sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.scheduling.order import Key, Ordered

keys = st.tuples(st.integers(0, 6).map(float), st.integers(0, 12))
changes = st.lists(st.tuples(st.sampled_from(["add", "add", "remove"]), keys, st.integers(0, 9)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(changes)
def test_it_answers_as_a_sorted_list_does(history: list[tuple[str, Key, int]]):
    tree, plain = Ordered(), dict[Key, int]()
    for what, key, size in history:
        if what == "add" and key not in plain:
            tree.add(key, size)
            plain[key] = size
        elif what == "remove" and key in plain:
            tree.remove(key)
            del plain[key]
        assert list(tree) == sorted(plain)
        assert len(tree) == len(plain)
        assert tree.before(key) == sum(1 for other in plain if other < key)
        for room in range(-1, 10):
            fits = [other for other in sorted(plain) if plain[other] <= room]
            assert tree.first(room) == (fits[0] if fits else None)


def test_removing_what_is_not_there_is_an_error_and_changes_nothing():
    tree = Ordered()
    tree.add((1.0, 1), 3)
    with pytest.raises(KeyError):
        tree.remove((1.0, 2))
    assert list(tree) == [(1.0, 1)]


def test_keys_that_come_in_order_make_no_deep_tree():
    tree = Ordered()
    for number in range(20_000):
        tree.add((number / 8, number), 1)
    node, depth = tree._root, 0
    while node is not None:
        node, depth = node.left, depth + 1
    assert depth < 60
