"""Prompts that begin alike, through a whole runtime: what is said of them, and that no answer changes."""

from __future__ import annotations

import pytest
from scripted_runtime import CHUNK, SLICES, scripted
from trio.testing import MockClock

from strata.testing import ScriptedEngine


@pytest.mark.parametrize(("shares", "cached"), [(True, 304), (False, 0)])
async def test_a_prompt_that_was_read_before_is_known_and_its_answer_is_the_same(
    autojump_clock: MockClock, shares: bool, cached: int
) -> None:
    """Of 320 tokens all but the last page: its logits are needed."""
    engine = ScriptedEngine(chunk_tokens=CHUNK, slices_per_chunk=SLICES, pages=256, page_tokens=16)
    async with scripted(engine, prefix_cache=shares) as scene:
        await scene.ask("first", 320, 5)
        first = scene.texts["first"]
        await scene.ask("first", 320, 5)
        again = scene.summaries["first"].figures
        assert scene.texts["first"] == first
        assert (again.cached_tokens, again.read_tokens) == (cached, 320)
        pages = scene.runtime.snapshot().pages
        known = 20 if shares else 0
        assert pages == {"free": 256 - known, "cached": known, "held": 0, "swapping": 0}
        assert scene.is_empty()


async def test_a_request_that_wants_no_cache_reads_all_of_its_prompt_and_leaves_nothing_to_others(
    autojump_clock: MockClock,
) -> None:
    engine = ScriptedEngine(chunk_tokens=CHUNK, slices_per_chunk=SLICES, pages=256, page_tokens=16)
    async with scripted(engine) as scene:
        await scene.ask("alone", 320, 5, cache_prompt=False)
        assert scene.runtime.snapshot().pages["cached"] == 0
        await scene.ask("alone", 320, 5)
        text = scene.texts["alone"]
        await scene.ask("alone", 320, 5, cache_prompt=False)
        assert scene.summaries["alone"].figures.cached_tokens == 0
        assert scene.texts["alone"] == text
