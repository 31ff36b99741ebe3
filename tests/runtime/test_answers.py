"""What a reader gets: text, stop strings, counts and the one end, parked or not."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from scripted_runtime import CHUNK, Scene, scripted
from trio.testing import MockClock

from strata.messages import Delta, Summary, Withdraw
from strata.testing.script import Script
from strata.testing.scripted import ScriptedEngine

LONG = 16 * CHUNK


def says(**answers: str) -> ScriptedEngine:
    script = Script(by_text={name.replace("_", " "): answer for name, answer in answers.items()})
    return ScriptedEngine(chunk_tokens=CHUNK, slices_per_chunk=4, pages=256, page_tokens=16, script=script)


async def park(scene: Scene, times: int) -> None:
    """Park whatever runs, so many times, by requests of a higher level."""
    for n in range(times):
        await trio.sleep(0.05)
        await scene.ask(f"urgent {n}", 40, 2, priority=5)


async def items(stream: Any) -> list[Delta | Summary]:
    found: list[Delta | Summary] = []
    while batch := await stream.batch():
        found += batch
    return found


async def test_a_character_of_several_tokens_is_sent_whole_also_across_a_park(autojump_clock: MockClock) -> None:
    """B50: every token here is one byte."""
    text = "a😀é€" * 4 + "🦜"
    async with scripted(says(emoji=text), max_running=1, max_priority=5) as scene, trio.open_nursery() as nursery:
        nursery.start_soon(park, scene, 8)
        async with scene.chat("emoji", 40, 200) as stream:
            deltas = [delta.text async for delta in stream]
        assert "".join(deltas) == text
        assert set(deltas) == set("a😀é€🦜")
        assert stream.summary is not None
        assert stream.summary.finish_reason == "stop"
        assert stream.summary.figures.parks["level"] > 3


async def test_a_character_cut_short_by_max_tokens_is_not_lost(autojump_clock: MockClock) -> None:
    """B50: at the end of the text."""
    async with scripted(says(emoji="a😀b")) as scene:
        await scene.ask("emoji", 40, 3)
        assert scene.texts["emoji"] == "a�"
        assert scene.summaries["emoji"].finish_reason == "length"
        assert scene.summaries["emoji"].figures.written_tokens == 3


async def test_a_stop_string_over_several_tokens_ends_the_answer_and_the_sequence(autojump_clock: MockClock) -> None:
    """B51: nothing of it is sent, nothing after it is counted, and the engine goes on for nobody."""
    async with scripted(says(talks="one two STOP three four five six")) as scene:
        await scene.ask("talks", 40, 100, stop="STOP")
        assert scene.texts["talks"] == "one two "
        summary = scene.summaries["talks"]
        assert summary.finish_reason == "stop"
        assert summary.figures.written_tokens == len("one two STOP")
        assert scene.runtime.actor("request-1").outcome == "completed (stop)"
        await trio.sleep(1)
        assert scene.engine.open_sequences == 0
        assert scene.engine.ran("step") < len("one two STOP") + 2
        assert scene.is_empty()


async def test_what_was_held_back_comes_when_the_answer_ends_without_it(autojump_clock: MockClock) -> None:
    """B51"""
    async with scripted(says(talks="one two STO", more="ends with ST")) as scene:
        await scene.ask("talks", 40, 100, stop=["STOP"])
        assert scene.texts["talks"] == "one two STO"
        await scene.ask("more", 40, len("ends with ST"), stop=["STOP"])
        assert scene.texts["more"] == "ends with ST"
        assert scene.summaries["more"].finish_reason == "length"


async def test_a_stop_string_in_the_last_token_that_was_allowed_is_a_stop(autojump_clock: MockClock) -> None:
    async with scripted(says(talks="one STOP two")) as scene:
        await scene.ask("talks", 40, len("one STOP"), stop="STOP")
        assert scene.texts["talks"] == "one "
        assert scene.summaries["talks"].finish_reason == "stop"


async def test_text_is_sent_as_soon_as_it_can_t_become_a_stop_string(autojump_clock: MockClock) -> None:
    async with scripted(says(talks="aSTxSTOP")) as scene, scene.chat("talks", 40, 100, stop="STOP") as stream:
        texts = [delta.text async for delta in stream]
    assert texts == ["a", "STx"]


@pytest.mark.parametrize("parks", [0, 1, 3, 10])
async def test_counts_and_ends_are_right_over_any_number_of_parks(parks: int, autojump_clock: MockClock) -> None:
    """B55: max_tokens, stop and usage; while the prompt is read and while the answer is written."""
    async with scripted(says(stops="x" * 40), max_running=1, max_priority=5) as scene:
        for name, tokens, max_tokens, written, reason in (
            ("writes", 40, 60, 60, "length"),
            ("reads", LONG, 7, 7, "length"),
            ("stops", 40, 100, 41, "stop"),
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(park, scene, parks)
                await scene.ask(name, tokens, max_tokens)
            summary = scene.summaries[name]
            figures = summary.figures
            assert summary.finish_reason == reason
            assert (figures.prompt_tokens, figures.read_tokens, figures.written_tokens) == (tokens, tokens, written)
            assert sum(figures.parks.values()) == figures.resumes
            assert parks == 0 or figures.resumes > 0
            # The end token is counted and has no text.
            assert len(scene.texts[name]) == written - (reason == "stop")


@pytest.mark.parametrize("max_running", [1, 4])
async def test_the_same_seed_gives_the_same_text_parked_or_not_batched_or_not(
    max_running: int, autojump_clock: MockClock
) -> None:
    """B54: and another seed another."""
    async with scripted(max_running=max_running, max_priority=5) as scene:
        texts = []
        for disturbed in (False, True):
            async with trio.open_nursery() as nursery:
                if disturbed:
                    nursery.start_soon(park, scene, 3)
                    nursery.start_soon(scene.ask, f"beside {max_running}", LONG, 20)
                await scene.ask("sampled", 40, 50, temperature=0.8, seed=7)
            texts.append(scene.texts["sampled"])
        await scene.ask("sampled", 40, 50, temperature=0.8, seed=8)
    assert texts[0] == texts[1] != scene.texts["sampled"]


async def test_there_is_one_summary_and_it_is_the_last(autojump_clock: MockClock) -> None:
    """B52: as far as the runtime goes."""
    async with scripted() as scene, scene.chat("whole", 40, 10) as stream:
        found = await items(stream)
        assert [type(item) for item in found].count(Summary) == 1
        assert isinstance(found[-1], Summary)
        assert found[-1] is stream.summary
        assert sum(item.tokens for item in found if isinstance(item, Delta)) == 10


async def test_a_slow_reader_gets_all_that_is_ready_at_once_and_slows_nobody(autojump_clock: MockClock) -> None:
    """B27: as far as the runtime goes."""
    async with scripted() as scene, scene.chat("slow", 40, 50, temperature=0) as slow:
        await scene.ask("quick", 40, 50)
        await trio.sleep(10)
        first = await slow.batch()
        assert isinstance(first[-1], Summary)
        assert len(first) <= 51
        quick = scene.summaries["quick"].figures
        assert quick.total_s < 1.2


async def test_figures_are_there_at_any_time_and_are_the_request_s_own(autojump_clock: MockClock) -> None:
    """B63: what is shown of a request changes only by what it does."""
    async with scripted(max_running=1) as scene, trio.open_nursery() as nursery:
        nursery.start_soon(scene.ask, "first", 4 * CHUNK, 20)
        await trio.sleep(0.01)
        async with scene.chat("second", LONG, 3) as stream:
            seen = []
            while stream.summary is None:
                figures = stream.figures()
                if not seen or seen[-1] != figures.state:
                    seen.append(figures.state)
                assert figures.prompt_tokens == LONG
                assert figures.written_tokens <= 3
                with trio.move_on_after(0.01):
                    await stream.batch()
            assert seen == ["queued", "reading", "decoding"]
            final = stream.figures()
            assert final.state == "done"
            await scene.ask("third", 40, 3)
            assert stream.figures() == final == stream.summary.figures
            assert final.queue_s + final.read_s + final.decode_s == pytest.approx(final.total_s)
            assert final.ttft_s == pytest.approx(final.queue_s + final.read_s)


async def test_a_withdrawal_by_a_stop_string_is_told_once(autojump_clock: MockClock) -> None:
    async with scripted(says(talks="STOP STOP STOP")) as scene:
        await scene.ask("talks", 40, 100, stop=["STOP", " "])
        assert scene.texts["talks"] == ""
        assert scene.summaries["talks"].figures.written_tokens == 4
    assert not any(isinstance(told, Withdraw) for told in scene.engine.told)
