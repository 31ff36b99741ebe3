"""What is offered is what followed the longest run that is at the end too, and it is offered seldom where it misses."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from strata.engine.draft import LONGEST, LOOK, PAIR, Drafter, Zeal

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def drafter(tokens: list[int], prompt: int) -> Drafter:
    """All of the tokens are there, and the first `prompt` of them are the prompt's; the last one is the next input."""
    made = Drafter(tuple(tokens[:prompt]), tokens[prompt:])
    made.reach(len(tokens) - 1)
    return made


def plainly(tokens: list[int], most: int) -> tuple[int, ...]:
    """The same without an index, by looking at all places."""
    end = len(tokens)
    places = [place for place in range(PAIR, end) if tokens[place - PAIR : place] == tokens[end - PAIR :]][-LOOK:]
    if not places:
        return ()

    def alike(place: int) -> int:
        return next(n for n in range(LONGEST, 0, -1) if n <= place and tokens[place - n : place] == tokens[end - n :])

    best = max(places, key=lambda place: (alike(place), place))
    text = list(tokens)
    for at in range(most):
        text.append(text[best + at])
    return tuple(text[end:])


@given(TEXTS, st.integers(1, 60), st.integers(0, 7))
@example([1, 2, 1, 2], 2, 7)
@example([1, 1, 1], 1, 3)
def test_what_followed_the_longest_run_is_offered(tokens: list[int], prompt: int, most: int):
    assert drafter(tokens, prompt).offer(most) == (plainly(tokens, most) if most else ())


@given(TEXTS, st.integers(1, 60), st.data())
def test_it_is_the_same_however_far_it_was_taken_at_a_time(tokens: list[int], prompt: int, data: st.DataObject):
    """Its state follows from tokens and position: a prompt that is known, read in chunks or written is no different."""
    steps = sorted(data.draw(st.lists(st.integers(0, len(tokens) - 1))))
    prompt = min(prompt, len(tokens))
    written: list[int] = []
    one = Drafter(tuple(tokens[:prompt]), written)
    for position in (*steps, len(tokens) - 1):
        written[:] = tokens[prompt : max(prompt, position + 1)]
        one.reach(position)
    whole = drafter(tokens, len(tokens))
    assert one.state() == whole.state()
    assert one.offer(5) == whole.offer(5)


def test_nothing_is_offered_where_nothing_repeats():
    assert drafter(list(range(50)), 20).offer(5) == ()
    assert drafter([7], 1).offer(5) == ()


def test_a_longer_run_goes_before_a_later_one():
    assert drafter([9, 1, 2, 3, 50, 8, 2, 3, 60, 9, 1, 2, 3], 4).offer(1) == (50,)
    assert drafter([1, 2, 50, 1, 2, 60, 1, 2], 4).offer(1) == (60,)


@given(st.integers(1, 7), st.lists(st.integers(0, 7), max_size=200))
def test_what_is_offered_follows_what_was_taken(limit: int, taken: list[int]):
    zeal, rest, misses = Zeal(limit), 0, 0
    for wish in taken:
        offered = zeal.count
        assert offered <= limit
        assert (offered > 0) == (rest == 0)
        got = min(wish, offered)
        zeal.stepped(offered, got)
        if not offered:
            rest -= 1
        elif got:
            misses = 0
            assert zeal.count == (min(limit, 2 * got) if got == offered else got)
        else:
            misses = min(misses + 1, 5)
            rest = 2**misses - 1


def test_a_text_that_never_repeats_is_asked_seldom_and_one_that_does_is_offered_more_and_more():
    zeal = Zeal(7)
    offers = []
    for _ in range(320):
        offers.append(zeal.count)
        zeal.stepped(zeal.count, 0)
    assert set(offers) == {0, 1}
    assert sum(offers) <= 15
    while not zeal.count:
        zeal.stepped(0, 0)
    counts = []
    for _ in range(5):
        counts.append(zeal.count)
        zeal.stepped(zeal.count, zeal.count)
    assert counts == [1, 2, 4, 7, 7]


def test_nobody_offers_where_none_are_asked_for():
    assert Zeal(0).count == 0
