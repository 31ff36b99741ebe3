"""What the scheduler decides because its time has come, and nothing else happened: through the whole runtime."""

from __future__ import annotations

import pytest
import trio
from scripted_runtime import CHUNK, scripted
from trio.testing import MockClock

from strata.errors import WaitedTooLong
from strata.testing.scripted import ScriptedEngine


def slow() -> ScriptedEngine:
    """Each slice takes 3 s, so that there are whole seconds in which the engine says nothing."""
    return ScriptedEngine(chunk_tokens=CHUNK, slices_per_chunk=4, pages=256, page_tokens=16, slice_s=3.0)


async def test_a_turn_comes_at_its_time_though_no_message_came(autojump_clock: MockClock) -> None:
    """B07: the first is parked at 5 s, in the middle of a slice; the engine follows when that is done, at 6 s."""
    async with scripted(slow(), max_running=1, quantum_s=5, turn_wait_s=4) as scene, trio.open_nursery() as nursery:
        start = trio.current_time()
        nursery.start_soon(scene.ask, "first", 2 * CHUNK, 2)
        await trio.sleep(0.5)
        nursery.start_soon(scene.ask, "second", 2 * CHUNK, 2)
        await trio.sleep(9)
        queued, *_, parked = scene.runtime.actor("request-1").history
        assert (parked.state, parked.reason) == ("parked (reading)", "turn")
        assert parked.at - queued.at == pytest.approx(5.0, abs=0.001)
        first = next(ran for ran in scene.engine.log if ran.seqs == (2,))
        assert first.at - start == pytest.approx(6.0)
    assert scene.ended == ["first", "second"]
    assert scene.summaries["first"].figures.parks.keys() == {"turn"}


async def test_one_that_waited_too_long_in_the_queue_is_told_so_at_its_time(autojump_clock: MockClock) -> None:
    """B62: as far as the runtime goes; the one that runs is not touched."""
    async with scripted(slow(), policy="fifo", max_wait_s=4) as scene, trio.open_nursery() as nursery:
        nursery.start_soon(scene.ask, "runs", 2 * CHUNK, 2)
        await trio.sleep(0.5)
        start = trio.current_time()
        with pytest.raises(WaitedTooLong) as caught:
            await scene.ask("waits", CHUNK, 2)
        assert trio.current_time() - start == pytest.approx(4.0)
        assert caught.value.retry_after_s > 0
    assert scene.ended == ["runs"]
