"""Answers that together take more pages than the device has, through a whole runtime."""

from __future__ import annotations

from typing import Any

import trio
from scripted_runtime import CHUNK, SLICES, Scene, scripted
from trio.testing import MockClock

from strata.messages import Grant, Open, SwapIn, SwapOut
from strata.testing import ScriptedEngine

ASKED = {"one": 200, "two": 150, "three": 170, "four": 120}
"""Tokens of each prompt; with its answer each takes 8 to 13 pages."""


async def ask_all(scene: Scene) -> None:
    async with trio.open_nursery() as nursery:
        for number, (name, tokens) in enumerate(ASKED.items()):
            nursery.start_soon(lambda n=name, t=tokens, at=number * 0.05: scene.ask(n, t, 60, at=at))


def engine(pages: int, slots: int, **named: Any) -> ScriptedEngine:
    return ScriptedEngine(
        chunk_tokens=CHUNK, slices_per_chunk=SLICES, pages=pages, page_tokens=16, slots=slots, **named
    )


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


async def until_seen(scene: Scene, where: str) -> int:
    """What parked requests keep there, as soon as they keep something."""
    with trio.fail_after(10):
        while not (found := scene.runtime.snapshot().parked_bytes[where]):
            await trio.sleep(0.005)
    return found


async def test_what_a_parked_request_keeps_is_counted_in_bytes_of_its_own_pages(autojump_clock: MockClock) -> None:
    async with scripted(engine(64, 0, page_bytes=1000)) as scene, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: scene.ask("low", 600, 20, priority=-1))
        nursery.start_soon(lambda: scene.ask("high", 100, 20, at=0.1))
        found = await until_seen(scene, "device")
        (low, _) = scene.opened()
        granted = [m for m in scene.engine.told if isinstance(m, Open | Grant) and m.seq == low]
        assert found == 1000 * sum(len(message.pages) for message in granted)
        await scene.runtime.wait_idle()
        assert scene.runtime.snapshot().parked_bytes == {"device": 0, "arena": 0}


async def test_what_lies_in_the_arena_is_counted_there_and_nothing_where_a_page_s_size_is_not_known(
    autojump_clock: MockClock,
) -> None:
    async with (
        scripted(engine(20, 60, page_bytes=1000), expect_new_tokens=1) as scene,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(ask_all, scene)
        found = await until_seen(scene, "arena")
        (first,) = [message for message in scene.engine.told if isinstance(message, SwapOut)]
        assert found == 1000 * len(first.slots)
    async with scripted(engine(20, 60)) as scene:
        assert scene.runtime.snapshot().parked_bytes == {}
