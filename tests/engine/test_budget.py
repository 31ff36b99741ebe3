"""How many pages there are follows from settings and memory, and what can't be is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from toy_model import LAYERS, ToyModel

from strata.config import EngineSettings
from strata.engine.budget import LONGEST_UNASKED, Budget, plan
from strata.errors import ConfigError

PAGE_BYTES = 64 * LAYERS * 8
MIB = 2**20
BESIDE = 2 * 8 * 512 + 4 * 16
"""What the toy takes for two workspaces of 512 tokens and four rows, before a context."""


def settings(**named: Any) -> EngineSettings:
    """Of four rows, unless more run."""
    return EngineSettings(**{"speculate": 3, **named})


def planned(*, free: int = 10**12, max_running: int = 4, context: int = 4096, **named: int) -> Budget:
    model = ToyModel(context=context)
    return plan(model, settings(**named), max_running=max_running, free_bytes=free)


def test_much_memory_gives_what_all_rows_can_use_and_no_more():
    assert planned() == Budget(pages=4 * 64, page_tokens=64, context=4096, rows=4, slots=4 * 64)


def test_a_quarter_of_the_free_memory_is_taken():
    assert planned(free=4 * PAGE_BYTES * 100 + BESIDE).pages == 100


def test_a_card_gives_all_that_is_free_and_the_arena_lies_in_the_hosts_memory():
    beside = BESIDE + ToyModel().bytes_beside_pages(4096, 4) - ToyModel().bytes_beside_pages(0, 4)
    budget = plan(
        ToyModel(context=4096),
        settings(),
        max_running=4,
        free_bytes=100 * PAGE_BYTES + beside,
        host_bytes=4 * 10 * PAGE_BYTES,
    )
    assert (budget.pages, budget.slots) == (100, 10)


def test_few_pages_shorten_the_context():
    assert planned(free=4 * PAGE_BYTES * 10 + BESIDE) == Budget(10, 64, 640, rows=4, slots=7)


def test_a_named_size_is_taken_whole():
    assert planned(kv_mib=1).pages == MIB // PAGE_BYTES


def test_a_context_that_is_not_a_multiple_of_pages_has_room():
    assert planned(context=100, max_running=3) == Budget(pages=6, page_tokens=64, context=100, rows=4, slots=6)
    assert planned(context=100, max_running=3, page_tokens=7).pages == 45


def test_a_shorter_context_is_kept():
    assert plan(ToyModel(context=4096), settings(context=128), max_running=2, free_bytes=10**9) == Budget(
        pages=4, page_tokens=64, context=128, rows=4, slots=4
    )


@pytest.mark.parametrize(
    ("chosen", "free", "words"),
    [
        (settings(context=5000), 10**12, "context: 5000 is more than the 4096"),
        (settings(context=4096), 4 * PAGE_BYTES * 10 + BESIDE, "context: 4096 tokens need .* 640 fit"),
        (settings(kv_mib=2), MIB + BESIDE, "kv_mib: 2 MiB is more than the 1.0 MiB"),
        (settings(kv_mib=1), MIB + BESIDE + 100, "kv_mib: with it .* are needed and .* are free"),
        (settings(), PAGE_BYTES, "kv_mib: not even one page"),
        (settings(kv_mib=1, arena_mib=9), 3 * MIB, "arena_mib: 9 MiB is more than the 2.0 MiB .* kv_mib"),
    ],
)
def test_what_can_not_be_is_refused_by_name(chosen: EngineSettings, free: int, words: str):
    with pytest.raises(ConfigError, match=words):
        plan(ToyModel(), chosen, max_running=4, free_bytes=free)


def test_a_file_of_any_context_is_served_up_to_what_fits_and_is_sensible():
    assert planned(context=2**31 - 1).context == LONGEST_UNASKED
    few = planned(context=2**31 - 1, free=4 * PAGE_BYTES * 10 + BESIDE)
    assert (few.pages, few.context) == (10, 640)


def test_a_longer_context_is_served_where_it_is_asked_for():
    asked = settings(context=2 * LONGEST_UNASKED)
    planned = plan(ToyModel(context=2**31 - 1), asked, max_running=1, free_bytes=10**12)
    assert planned.context == 2 * LONGEST_UNASKED


@pytest.mark.parametrize(("taker", "many"), [("max_running", 1000), ("max_half_read", 9), ("chunk_tokens", 1024)])
def test_rows_and_workspaces_leave_less_for_pages(taker: str, many: int):
    free = 4 * PAGE_BYTES * 10 + BESIDE
    assert planned(free=free, **{taker: many}).pages < 10


def test_an_arena_is_as_large_as_it_is_named_or_not_there_at_all():
    assert planned(arena_mib=3).slots == 3 * MIB // PAGE_BYTES
    assert planned(arena_mib=0).slots == 0
    assert planned(arena_mib=0).pages == planned().pages


def test_an_arena_that_nobody_names_takes_a_quarter_of_what_the_pages_leave():
    pages, left = 10 * PAGE_BYTES, 30 * PAGE_BYTES
    assert planned(free=pages + left + BESIDE).slots == left // 4 // PAGE_BYTES


def test_an_arena_that_nobody_names_is_no_larger_than_the_pages_nor_than_its_most():
    assert planned(kv_mib=1).slots == MIB // PAGE_BYTES
    assert planned(max_running=4096, context=1 << 20).slots == 1024 * MIB // PAGE_BYTES
