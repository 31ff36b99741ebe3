"""Waiting and giving way, through the whole runtime, in virtual time."""

from __future__ import annotations

import threading

import pytest
import trio
from scripted_runtime import CHUNK, SLICES, Scene, scripted
from trio.testing import MockClock

from strata.actors.voice import Voice
from strata.config import Settings
from strata.runtime import _running
from strata.testing.language import ByteTokenizer, PlainTemplate
from strata.testing.scripted import ScriptedEngine

LONG = 16 * CHUNK


async def test_a_request_that_is_alone_never_parks_and_costs_nothing_over_no_preemption(
    autojump_clock: MockClock,
) -> None:
    """B01: the engine does the same work at the same times."""
    logs = []
    for preempt in ("slice", "chunk", "off"):
        async with scripted(preempt=preempt) as scene:
            start = trio.current_time()
            await scene.ask("alone", LONG, 40)
            logs.append([(ran.kind, ran.seqs, round(ran.at - start, 6)) for ran in scene.engine.log])
            assert scene.summaries["alone"].figures.parks == {}
            assert scene.summaries["alone"].figures.parked_s == 0
    assert logs[0] == logs[1] == logs[2]
    assert len(logs[0]) == 16 * SLICES + 39


async def test_a_short_request_starts_within_one_slice_of_a_long_one_that_reads(autojump_clock: MockClock) -> None:
    """B02: one park, one resume; long parks, short ends, long resumes, long ends."""
    async with scripted(max_running=1) as scene, trio.open_nursery() as nursery:
        start = trio.current_time()
        nursery.start_soon(scene.ask, "long", LONG, 4)
        await trio.sleep(0.115)
        nursery.start_soon(scene.ask, "short", CHUNK, 4)
        await trio.sleep(0.03)
        now = scene.runtime.statistics()
        assert (now.parked, now.reading) == (1, 1)
        first = next(ran for ran in scene.engine.log if ran.seqs == (2,))
        assert first.at - start == pytest.approx(0.12)
    assert scene.ended == ["short", "long"]
    long = scene.summaries["long"].figures
    assert (long.parks, long.resumes) == ({"short": 1}, 1)
    assert scene.summaries["short"].figures.parks == {}
    changes = [change.state for change in scene.runtime.actor("request-1").history]
    assert changes == ["queued", "reading", "parked (reading)", "reading", "decoding", "done"]
    long_at = {change.state: change.at for change in scene.runtime.actor("request-1").history}
    short_done = scene.runtime.actor("request-2").history[-1].at
    assert long_at["parked (reading)"] <= short_done <= long_at["reading"] < long_at["done"]


async def test_the_long_one_s_answer_is_what_it_is_undisturbed(autojump_clock: MockClock) -> None:
    async with scripted(max_running=1, prefix_cache=False) as scene:
        await scene.ask("long", LONG, 30)
        undisturbed = scene.texts["long"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.ask, "long", LONG, 30)
            for n in range(4):
                await trio.sleep(0.1)
                nursery.start_soon(scene.ask, f"short {n}", 40, 3)
        assert scene.summaries["long"].figures.parks
        assert scene.texts["long"] == undisturbed


async def test_three_equals_that_arrive_together_end_in_order_of_arrival(autojump_clock: MockClock) -> None:
    """B03"""
    async with scripted(max_running=1) as scene, trio.open_nursery() as nursery:
        for name in ("a", "b", "c"):
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(scene.ask, name, 4 * CHUNK, 8)
    assert scene.ended == ["a", "b", "c"]
    assert all(summary.figures.parks == {} for summary in scene.summaries.values())


@pytest.mark.parametrize("boundary", range(0, 4 * SLICES + 6))
@pytest.mark.parametrize("offset", [-0.001, 0.0, 0.001])
async def test_a_short_one_that_comes_at_any_boundary_parks_nobody_by_mistake(
    boundary: int, offset: float, autojump_clock: MockClock
) -> None:
    """B04: also at the very moment the read ends, or while the first tokens are written."""
    async with scripted(max_running=1) as scene:
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.ask, "long", 4 * CHUNK, 5)
            nursery.start_soon(lambda: scene.ask("short", 30, 2, at=start + max(boundary * 0.01 + offset, 0)))
            nursery.start_soon(lambda: scene.ask("next", 4 * CHUNK, 2, at=start + 0.4))
        long, short, following = (scene.summaries[name].figures for name in ("long", "short", "next"))
        assert short.parks == {}
        assert following.parks == {}
        assert sum(long.parks.values()) == long.resumes <= 1
        assert sum(s.figures.written_tokens for s in scene.summaries.values()) == 9
        assert scene.is_empty()


async def test_parks_are_counted_over_the_whole_life_by_reason(autojump_clock: MockClock) -> None:
    """B05: each short one parks it once; resuming resets nothing."""
    async with scripted(max_running=1, max_priority=10) as scene, trio.open_nursery() as nursery:
        nursery.start_soon(scene.ask, "long", LONG, 4)
        for n in range(3):
            await trio.sleep(0.1)
            await scene.ask(f"short {n}", 30, 2)
        await trio.sleep(0.05)
        await scene.ask("urgent", 2 * LONG, 2, priority=10)
    figures = scene.summaries["long"].figures
    assert figures.parks == {"short": 3, "level": 1}
    assert figures.resumes == 4
    assert figures.parked_s == pytest.approx(figures.total_s - figures.read_s - figures.decode_s - figures.queue_s)


async def test_a_cap_on_parks_holds_over_the_whole_life(autojump_clock: MockClock) -> None:
    """B05: it can't be evaded by resuming."""
    async with scripted(max_running=1, max_parks=2) as scene, trio.open_nursery() as nursery:
        nursery.start_soon(scene.ask, "long", LONG, 4)
        for n in range(4):
            await trio.sleep(0.06)
            nursery.start_soon(scene.ask, f"short {n}", 30, 2)
    assert scene.summaries["long"].figures.parks == {"short": 2}


async def test_no_read_gives_way_to_one_that_could_not_start(autojump_clock: MockClock) -> None:
    """B08: the long one holds the pages that the short one would need; nothing parks, spins or waits for ever."""
    engine = ScriptedEngine(chunk_tokens=CHUNK, slices_per_chunk=SLICES, pages=18, page_tokens=16)
    async with scripted(engine, max_running=2) as scene, trio.open_nursery() as nursery:
        nursery.start_soon(scene.ask, "long 1", 4 * CHUNK, 8)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(scene.ask, "long 2", 4 * CHUNK, 8)
        await trio.sleep(0.005)
        await scene.ask("short", 30, 2)
    assert scene.ended[0] == "long 1"
    assert len(scene.ended) == 3
    assert scene.summaries["long 1"].figures.parks == {}
    steps = sum(type(told).__name__ == "Step" for told in scene.engine.told)
    assert steps < 20


async def test_an_answer_goes_on_beside_a_read(autojump_clock: MockClock) -> None:
    async with scripted(max_running=2) as scene, trio.open_nursery() as nursery:
        nursery.start_soon(scene.ask, "writes", 30, 60)
        await trio.sleep(0.1)
        await scene.ask("reads", 2 * CHUNK, 2)
        assert "writes" not in scene.ended
    assert scene.summaries["writes"].figures.parks == {}


class TakesTurns(ByteTokenizer):
    """Tokenises on threads, and each text only once those that are to be done before it are."""

    def __init__(self, *order: str) -> None:
        self._order = order
        self.done: list[str] = []
        self._may_go_on = {name: threading.Event() for name in order}

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        name = next(name for name in self._order if name in text)
        for before in self._order[: self._order.index(name)]:
            self._may_go_on[before].wait(60)
        self.done.append(name)
        self._may_go_on[name].set()
        return super().encode(text, special=special)


async def test_a_request_s_place_is_its_arrival_and_not_when_it_was_tokenised(mock_clock: MockClock) -> None:
    """B03: `arrived` is taken when submit is called; here the one that came last is tokenised before the other."""
    engine = ScriptedEngine(chunk_tokens=CHUNK, slices_per_chunk=SLICES, pages=256, page_tokens=16)
    tokenizer = TakesTurns("first", "third", "second")
    voice = Voice(tokenizer, PlainTemplate(), quick_characters=0)
    settings = Settings.of(max_running=1, chunk_tokens=CHUNK, page_tokens=16)
    async with _running(lambda _n: engine, settings, voice, renewable=False) as runtime, trio.open_nursery() as nursery:
        scene = Scene(runtime, engine)
        for name in ("first", "second", "third"):
            nursery.start_soon(scene.ask, name, LONG, 2)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(0.001)
        # Time stands still for the engine until all are tokenised.
        while runtime.statistics().queued < 2:
            await trio.to_thread.run_sync(threading.active_count)
        assert runtime.statistics().reading == 1
        mock_clock.autojump_threshold = 0
    assert scene.ended == ["first", "second", "third"]
    assert tokenizer.done == ["first", "third", "second"]
