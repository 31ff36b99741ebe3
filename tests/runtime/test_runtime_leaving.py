"""Leaving: in every state, by the reader or by somebody else, and nothing of it stays."""

from __future__ import annotations

import gc
import os
import random

import pytest
import trio
from scripted_runtime import CHUNK, SLICES, Scene, read_some, scripted
from trio.testing import MockClock

from strata.errors import AlreadyDone, RequestCancelled, UnknownRequest
from strata.messages import Close, Grant, Open, Step
from strata.testing.scripted import ScriptedEngine

LONG = 16 * CHUNK


async def test_a_queued_one_that_leaves_is_never_started_and_leaves_no_trace(autojump_clock: MockClock) -> None:
    """B20"""
    async with scripted(max_running=1) as scene:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.ask, "first", LONG, 2)
            await trio.sleep(0.015)
            async with scene.chat("leaves", LONG, 2) as stream:
                assert stream.figures().state == "queued"
                assert stream.figures().ahead == 1
                assert scene.runtime.statistics().queued == 1
            now = scene.runtime.statistics()
            assert (now.queued, now.reading) == (0, 1)
            await scene.ask("last", LONG, 2)
        assert scene.opened() == [1, 3]
        assert scene.ended == ["first", "last"]
        assert scene.is_empty()


async def test_one_that_leaves_while_its_prompt_is_read_stops_the_read_within_one_slice(
    autojump_clock: MockClock,
) -> None:
    """B21: as far as the runtime goes."""
    async with scripted() as scene:
        async with scene.chat("leaves", LONG, 2):
            await trio.sleep(0.055)
            left = trio.current_time()
        assert trio.current_time() == left
        assert scene.runtime.statistics().pages_held == 0
        await trio.sleep(1)
        assert max(ran.at for ran in scene.engine.log) < left
        assert scene.engine.open_sequences == scene.engine.half_read == scene.engine.held_pages == 0


async def test_a_parked_one_that_leaves_frees_its_pages_at_once_while_another_runs(autojump_clock: MockClock) -> None:
    """B22: without waiting for it."""
    async with scripted(max_running=1, max_priority=1) as scene:
        async with trio.open_nursery() as nursery:
            async with scene.chat("leaves", LONG, 2) as stream:
                await trio.sleep(0.055)
                nursery.start_soon(lambda: scene.ask("urgent", LONG, 2, priority=1))
                await trio.sleep(0.05)
                assert stream.figures().state == "parked (reading)"
                held = scene.runtime.statistics().pages_held
                own = sum(len(told.pages) for told in scene.engine.told if isinstance(told, Grant) and told.seq == 1)
                left = trio.current_time()
            assert trio.current_time() == left
            assert scene.runtime.statistics().pages_held == held - own
            assert scene.runtime.statistics().parked == 0
            await trio.sleep(0.011)
            assert scene.engine.open_sequences == 1
            assert scene.engine.half_read <= 1
            assert "urgent" not in scene.ended
        assert scene.is_empty()


async def test_no_step_includes_one_that_left_while_it_decoded(autojump_clock: MockClock) -> None:
    """B23"""
    async with scripted() as scene, trio.open_nursery() as nursery:
        nursery.start_soon(scene.ask, "stays", 40, 30)
        async with scene.chat("leaves", 40, 30) as stream:
            await read_some(stream, 5)
            seq = int(stream.id.removeprefix("request-"))
        left = trio.current_time()
    assert all(seq not in (*step.decode, step.read) for step in scene.steps_after_close(seq))
    assert all(seq not in ran.seqs for ran in scene.engine.log if ran.at > left + 0.01)


async def test_a_cancel_names_one_request_and_changes_no_other_by_a_byte(autojump_clock: MockClock) -> None:
    """B24: of queued, parked, running and finished ones."""
    asks = [("reads", LONG, 12), ("short", 40, 12), ("also long", LONG, 12), ("third", 9 * CHUNK, 3)]

    async def run(victim: int | None) -> dict[str, str]:
        async with scripted(max_running=2) as scene:
            await scene.ask("finished", 40, 12)
            with pytest.raises(AlreadyDone):
                scene.runtime.cancel("request-1")
            async with trio.open_nursery() as nursery:
                for n, (name, tokens, max_tokens) in enumerate(asks, start=2):
                    nursery.start_soon(_ask_unless_cancelled, scene, name, tokens, max_tokens, n == victim)
                    await trio.sleep(0.03)
                # Others have started, wait, and read while this is tried on one that is over.
                with pytest.raises(AlreadyDone):
                    scene.runtime.cancel("request-1")
                if victim is not None:
                    scene.runtime.cancel(f"request-{victim}")
            assert scene.is_empty()
            return scene.texts

    whole = await run(None)
    assert len(whole) == 1 + len(asks)
    for victim, (name, _, _) in enumerate(asks, start=2):
        assert await run(victim) == {who: text for who, text in whole.items() if who != name}


async def _ask_unless_cancelled(scene: Scene, name: str, tokens: int, max_tokens: int, victim: bool) -> None:
    if not victim:
        await scene.ask(name, tokens, max_tokens)
        return
    with pytest.raises(RequestCancelled, match="admin"):
        await scene.ask(name, tokens, max_tokens)


async def test_cancelling_what_is_over_or_was_never_there_is_an_error_that_says_so(autojump_clock: MockClock) -> None:
    """B24"""
    async with scripted() as scene:
        await scene.ask("done", 40, 2)
        with pytest.raises(AlreadyDone):
            scene.runtime.cancel("request-1")
        async with scene.chat("read to its end", 40, 2) as stream:
            await stream.text()
            with pytest.raises(AlreadyDone):
                scene.runtime.cancel(stream.id)
        for unknown in ("request-9", "nobody", "dispatcher", "request-x", ""):
            with pytest.raises(UnknownRequest):
                scene.runtime.cancel(unknown)


@pytest.mark.parametrize("round", range(6))
async def test_a_cancel_that_comes_just_after_the_end_is_told_so(round: int, autojump_clock: MockClock) -> None:
    """B25: between the last token and the terminal event; several times, for Trio's order of tasks is random."""
    async with scripted() as scene, scene.chat("whole", 40, 3) as stream:
        # Three slices and two steps, of 10 ms each, from its submit on.
        await trio.sleep(0.05)
        while not scene.runtime.statistics().ended:
            await trio.lowlevel.checkpoint()
        with pytest.raises(AlreadyDone):
            scene.runtime.cancel(stream.id)
        assert len(await stream.text()) == 3


async def test_the_reader_of_a_cancelled_request_gets_what_was_ready_and_then_the_error(
    autojump_clock: MockClock,
) -> None:
    async with scripted() as scene, scene.chat("victim", 40, 30, temperature=0) as stream:
        await trio.sleep(0.055)
        scene.runtime.cancel(stream.id, by="somebody")
        await trio.sleep(0.001)
        # The first token comes with the third slice, which ends the prompt, then one every 10 ms.
        assert len([await anext(stream) for _ in range(3)]) == 3
        with pytest.raises(RequestCancelled, match="somebody"):
            await anext(stream)
        assert stream.figures().written_tokens == 3
        assert scene.runtime.actor(stream.id).outcome == "cancelled by somebody"


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("way", ["leave", "cancel"])
async def test_a_cancel_takes_effect_in_every_hand_off_gap(turns: int, way: str, autojump_clock: MockClock) -> None:
    """B25: so many turns of the loop after its submit: before it is prepared, queued, taken, accepted, started."""
    async with scripted() as scene:
        async with trio.open_nursery() as nursery:
            if way == "leave":
                nursery.start_soon(scene.ask, "victim", 40, 30)
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            else:
                nursery.start_soon(_ask_unless_cancelled, scene, "victim", 40, 30, True)
                while len(scene.runtime.tree()) < 4:
                    await trio.lowlevel.checkpoint()
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                scene.runtime.cancel("request-1")
        assert scene.ended == []
        assert scene.is_empty()
        await trio.sleep(1)
        assert scene.engine.ran("step") == 0
        assert scene.engine.open_sequences == 0


@pytest.mark.parametrize("tenths", range(0, 44))
async def test_a_cancel_at_any_moment_of_a_life_leaves_nothing(tenths: int, autojump_clock: MockClock) -> None:
    """B25: between two slices, two steps, last token and terminal event; parked and resumed once on the way."""
    async with scripted(max_running=1) as scene:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.ask, "victim", 4 * CHUNK, 8)
            nursery.start_soon(lambda: scene.ask("other", 40, 2, at=trio.current_time() + 0.035))
            await trio.sleep(0.005 * tenths + 0.0001)
            nursery.cancel_scope.cancel()
        await trio.sleep(1)
        assert scene.is_empty()
        assert scene.engine.open_sequences == scene.engine.held_pages == 0


async def test_leaving_after_the_end_withdraws_nothing(autojump_clock: MockClock) -> None:
    async with scripted() as scene, scene.chat("whole", 40, 3) as stream:
        await stream.text()
        await trio.sleep(1)
    assert not any(isinstance(told, Close) for told in scene.engine.told)
    assert scene.runtime.actor("request-1").outcome == "completed (length)"


@pytest.mark.parametrize("seed", range(2))
async def test_random_departures_leave_everything_as_it_was(seed: int, autojump_clock: MockClock) -> None:
    """B26: 1 000 with both seeds, in random states; no file stays open, and what remains is byte-identical to
    an undisturbed run."""
    before = open_files()
    dice = random.Random(seed)
    asks = [
        (f"{seed} {n}", dice.choice([30, 40, 100, 300, 700]), dice.randint(1, 20), dice.random() < 0.9)
        for n in range(720)
    ]
    async with scripted(_quick_engine(), max_running=4, max_queued=1000) as scene:
        async with trio.open_nursery() as nursery:
            for name, tokens, max_tokens, leaves in asks:
                patience = dice.expovariate(20) if leaves else float("inf")
                nursery.start_soon(_ask_and_perhaps_leave, scene, name, tokens, max_tokens, patience)
                await trio.sleep(dice.expovariate(40))
        assert scene.is_empty()
        await trio.sleep(0.01)  # The engine hears of the last one after its slice.
        assert scene.engine.open_sequences == scene.engine.held_pages == scene.engine.half_read == 0
    stayed = {name for name, *_, leaves in asks if not leaves}
    assert stayed <= scene.texts.keys()
    assert len(asks) - len(scene.texts) > 500
    for name, tokens, max_tokens, _ in dice.sample([ask for ask in asks if ask[0] in scene.texts], 20):
        async with scripted(_quick_engine()) as alone:
            await alone.ask(name, tokens, max_tokens)
        assert alone.texts[name] == scene.texts[name]
    assert open_files() == before


def open_files() -> set[str]:
    gc.collect()
    return set(os.listdir("/dev/fd"))


def _quick_engine() -> ScriptedEngine:
    return ScriptedEngine(
        chunk_tokens=CHUNK, slices_per_chunk=SLICES, pages=256, page_tokens=16, slice_s=0.003, step_s=0.003
    )


async def _ask_and_perhaps_leave(scene: Scene, name: str, tokens: int, max_tokens: int, patience: float) -> None:
    with trio.move_on_after(patience):
        await scene.ask(name, tokens, max_tokens)


async def test_the_messages_for_one_who_left_are_in_order(autojump_clock: MockClock) -> None:
    """A close is told before the step that no longer names it."""
    async with scripted() as scene, trio.open_nursery() as nursery:
        nursery.start_soon(scene.ask, "stays", 40, 30)
        async with scene.chat("leaves", 40, 30) as stream:
            await read_some(stream, 3)
            before = len(scene.engine.told)
        kinds = [type(told) for told in scene.engine.told[before:]]
        assert kinds == [Close, Step]
        assert isinstance(scene.engine.told[0], Open)
