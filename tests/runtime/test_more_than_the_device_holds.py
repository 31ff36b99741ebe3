"""Answers that together take more pages than the device has, through a whole runtime."""

from __future__ import annotations

import trio
from scripted_runtime import CHUNK, SLICES, Scene, scripted
from trio.testing import MockClock

from strata.messages import SwapIn, SwapOut
from strata.testing import ScriptedEngine

ASKED = {"one": 200, "two": 150, "three": 170, "four": 120}
"""Tokens of each prompt; with its answer each takes 8 to 13 pages."""


async def ask_all(scene: Scene) -> None:
    async with trio.open_nursery() as nursery:
        for number, (name, tokens) in enumerate(ASKED.items()):
            nursery.start_soon(lambda n=name, t=tokens, at=number * 0.05: scene.ask(n, t, 60, at=at))


def engine(pages: int, slots: int) -> ScriptedEngine:
    return ScriptedEngine(chunk_tokens=CHUNK, slices_per_chunk=SLICES, pages=pages, page_tokens=16, slots=slots)


async def test_all_end_and_no_answer_is_another_than_with_pages_for_all(autojump_clock: MockClock) -> None:
    """B10: and what moves can be seen."""
    async with scripted(engine(256, 0)) as scene:
        await ask_all(scene)
        undisturbed = scene.texts
    async with scripted(engine(20, 60), expect_new_tokens=1) as scene:
        await ask_all(scene)
        assert scene.texts == undisturbed
        told = [message for message in scene.engine.told if isinstance(message, SwapOut | SwapIn)]
        moved = scene.runtime.snapshot().moved
        assert moved["out"] + moved["in"] == sum(len(message.pages) for message in told) > 0
        assert any(summary.figures.parks.get("pages") for summary in scene.summaries.values())
        assert scene.is_empty()
        assert scene.runtime.snapshot().slots == {"free": 60, "used": 0}
        assert (scene.engine.held_pages, scene.engine.held_slots) == (0, 0)
