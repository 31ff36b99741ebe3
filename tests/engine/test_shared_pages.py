"""A cached beginning: pages that several sequences read, and the same bits as without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from drive import CHUNK, GREEDY, PAGE, Drive, prompt
from parity import (
    DISTURBANCES,
    PROMPT,
    Disturb,
    Run,
    another,
    cached,
    decoding_differs_from_reading,
    llama,
    numbers,
    reads,
    same_from_first_chunk_on,
    shares_and_leaves,
)
from toy_model import ToyModel

from strata.engine.holdings import Usage
from strata.messages import Grant, Open, Seq

ONE, TWO, THREE = Seq(1), Seq(2), Seq(3)


# -- the same bits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [7, 16, 24, 64])
def test_a_hit_changes_no_bit_wherever_the_known_beginning_ends(make: Callable[..., Drive], page: int):
    """On a page's end: inside a tile, inside a chunk, at the end of either."""
    drive = make(page=page, pages=2000 // page)
    undisturbed = Run(drive)
    pages = cached(drive, len(PROMPT))
    for count in range(1, (len(PROMPT) - 1) // page + 1):
        same_from_first_chunk_on(Run(drive, cached=pages[:count]), undisturbed)


def test_a_hit_in_a_long_prompt_changes_no_bit(tiny_model_path: Path):
    """Behind the first span of keys, and chunks as long as they are in use."""
    drive = Drive(llama(tiny_model_path), chunk=512, page=16, pages=200)
    try:
        drive.open(ONE, prompt(1, 1000))
        drive.step(read=ONE)
        drive.until_written(ONE, 3)
        state = drive.engine.fingerprint(ONE)
        for known in (16, 240, 512, 528, 992):
            seq = Seq(next(numbers))
            drive.open(seq, prompt(1, 1000), cached=tuple(drive.held[ONE][: known // 16]))
            drive.step(read=seq)
            drive.until_written(seq, 3)
            assert drive.engine.fingerprint(seq) == state
            drive.close(seq)
    finally:
        drive.engine.close()


@pytest.mark.parametrize("disturb", DISTURBANCES.values(), ids=DISTURBANCES)
@pytest.mark.parametrize("known", [PAGE, CHUNK + PAGE])
def test_a_hit_that_is_parked_after_any_slice_or_step_changes_no_bit(
    make: Callable[..., Drive], undisturbed: Run, disturb: Disturb, known: int
):
    drive = make()
    pages = cached(drive, known)
    for place in range(1, len(Run(drive, cached=pages).prints) + 1):
        same_from_first_chunk_on(Run(drive, {place: disturb}, cached=pages), undisturbed)


def test_pages_that_others_read_too_change_no_bit(make: Callable[..., Drive], undisturbed: Run):
    """Those it found, and those it has read itself."""
    drive = make()
    pages = cached(drive, PAGE)
    places = range(1, len(Run(drive, cached=pages).prints) + 1)
    for place in places:
        same_from_first_chunk_on(Run(drive, {place: shares_and_leaves}, cached=pages), undisturbed)
    same_from_first_chunk_on(Run(drive, dict.fromkeys(places, shares_and_leaves), cached=pages), undisturbed)


def test_the_first_holder_may_leave_at_any_slice_or_step(make: Callable[..., Drive], undisturbed: Run):
    """And its own pages are written by whoever gets them."""
    drive = make()
    place = 1
    while True:
        first = reads(drive)

        def leaves(drive: Drive, _: Seq, first: Seq = first) -> None:
            drive.close(first)
            another(32)(drive, first)

        hit = Run(drive, {place: leaves}, cached=tuple(drive.held[first][: (CHUNK + PAGE) // PAGE]))
        same_from_first_chunk_on(hit, undisturbed)
        drive.close(first)
        if place == len(hit.prints):
            return
        place += 1


# -- what is not shared ---------------------------------------------------------------------------------------------


def test_decoding_writes_other_bits_than_reading(tiny_model_path: Path):
    """Why only pages that were read are shared.  Should this fail, written ones may be shared too, and the rule go."""
    drive = Drive(llama(tiny_model_path), pages=40)
    try:
        decoding_differs_from_reading(drive)
    finally:
        drive.engine.close()


# -- who holds what -------------------------------------------------------------------------------------------------


def test_a_shared_page_is_counted_once_and_free_when_its_last_holder_has_left():
    drive = Drive()
    first = reads(drive)
    pages = tuple(drive.held[first][:4])
    for seq in (TWO, THREE):
        drive.open(seq, PROMPT, cached=pages, hold=0)
    own = len(drive.held[first])
    assert drive.engine.usage() == Usage(sequences=3, pages=own, half_chunks=0, workspaces_free=2)
    drive.close(first)
    assert drive.engine.usage().pages == 4
    drive.close(TWO)
    drive.tell(Open(ONE, prompt(1, 10), GREEDY), Grant(ONE, pages[:1]))
    assert f"sequence {THREE} holds it" in (drive.error(ONE) or "")
    drive.close(THREE)
    assert drive.engine.usage().pages == 0
    drive.tell(Open(Seq(4), prompt(1, 10), GREEDY), Grant(Seq(4), pages[:1]))
    assert drive.error(Seq(4)) is None


def test_a_hit_writes_nothing_into_its_shared_pages():
    drive = Drive()
    pages = cached(drive, CHUNK + PAGE)
    drive.model.pages_written.clear()
    Run(drive, cached=pages)
    assert drive.model.pages_written
    assert drive.model.pages_written.isdisjoint(pages)


def test_what_stands_in_a_shared_page_is_what_is_counted_on():
    """The toy's tokens follow from what its pages hold: another beginning gives another answer."""
    drive = Drive(ToyModel())
    pages = cached(drive, CHUNK, prompt(2, 2 * CHUNK))
    assert Run(drive, cached=pages).tokens != Run(drive).tokens


@pytest.mark.parametrize(
    ("tokens", "change"),
    [
        pytest.param((*PROMPT[:3], 9, *PROMPT[4:]), list, id="other tokens"),
        pytest.param(PROMPT, lambda pages: [pages[1], pages[0]], id="another order"),
        pytest.param(PROMPT, lambda pages: pages[1:], id="not from the beginning"),
        pytest.param((*PROMPT, 3, 4), lambda pages: [*pages, 5], id="one that is still to be read"),
    ],
)
def test_pages_that_a_holder_has_not_filled_with_that_beginning_fail_who_counts_on_them(
    tokens: tuple[int, ...], change: Callable[[list[int]], list[int]]
):
    drive = Drive()
    drive.tell(Open(TWO, PROMPT, GREEDY), Grant(TWO, tuple(range(12))))
    drive.step(read=TWO, until=CHUNK)
    drive.run()
    pages = tuple(change(list(range(CHUNK // PAGE))))
    drive.tell(Open(ONE, tokens, GREEDY, pages, len(pages) * PAGE))
    assert f"sequence {TWO}" in (drive.error(ONE) or "")
    drive.step(read=TWO)
    drive.run()
    assert drive.ended(TWO) == "length"
    assert drive.engine.usage().pages == 0


def test_a_page_that_its_holder_wrote_in_its_answer_is_not_shared():
    drive = Drive()
    drive.tell(Open(TWO, prompt(2, 10), attrs.evolve(GREEDY, max_tokens=20)), Grant(TWO, (0, 1)))
    drive.step(read=TWO)
    drive.until_written(TWO, 15)
    again = (*prompt(2, 10), *drive.tokens(TWO))
    drive.tell(Open(ONE, again, GREEDY, (0,), PAGE))
    assert f"sequence {TWO} has not read" in (drive.error(ONE) or "")
