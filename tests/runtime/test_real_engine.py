"""The whole runtime on a thread and a real (tiny, random) model, by the real clock."""

from __future__ import annotations

import gc
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

import strata
from strata.config import Settings
from strata.errors import ConfigError, ModelError, PromptTooLong
from strata.messages import Delta, Summary

HELLO = [{"role": "user", "content": "hello world"}]


def question(words: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": "the world and the system of it " * (words // 7)}]


async def answer(runtime: strata.Runtime, messages: Any, **named: Any) -> tuple[str, Summary]:
    async with runtime.chat(messages, temperature=0, **named) as stream:
        text = await stream.text()
        assert stream.summary is not None
        return text, stream.summary


async def test_a_chat_is_answered_and_what_is_served_is_told(tiny_model_path: Path) -> None:
    async with strata.open_runtime(tiny_model_path, threads=1) as runtime:
        text, summary = await answer(runtime, HELLO, max_tokens=12, ignore_eos=True)
        assert text
        assert summary.finish_reason == "length"
        assert (summary.figures.read_tokens, summary.figures.written_tokens) == (summary.figures.prompt_tokens, 12)
        model = runtime.model
        assert (model.id, model.context, model.quantisation, model.architecture) == ("tiny", 2048, "F32", "llama")
        assert model.size_bytes == tiny_model_path.stat().st_size
        assert model.created == int(tiny_model_path.stat().st_mtime)


async def test_answers_do_not_depend_on_who_else_is_there(tiny_model_path: Path) -> None:
    """B26: long and short ones at once, parked and batched, equal each one's own undisturbed answer."""
    asks = [(question(n * 100), 16) for n in range(1, 6)] + [(HELLO, 8)] * 3
    async with strata.open_runtime(tiny_model_path, threads=1, chunk_tokens=64) as runtime:
        alone = [(await answer(runtime, messages, max_tokens=most, ignore_eos=True))[0] for messages, most in asks]
        together: dict[int, str] = {}

        async def one(n: int) -> None:
            messages, most = asks[n]
            together[n] = (await answer(runtime, messages, max_tokens=most, ignore_eos=True))[0]

        async with trio.open_nursery() as nursery:
            for n in range(len(asks)):
                nursery.start_soon(one, n)
        assert [together[n] for n in range(len(asks))] == alone
        assert runtime.statistics().pages_held == 0


async def test_log_probabilities_come_with_the_text_of_their_tokens(tiny_model_path: Path) -> None:
    async with (
        strata.open_runtime(tiny_model_path, threads=1) as runtime,
        runtime.chat(HELLO, max_tokens=6, logprobs=2, temperature=0, ignore_eos=True) as stream,
    ):
        deltas = [item for batch in [await stream.batch() async for _ in until_done(stream)] for item in batch]
    told = [one for delta in deltas if isinstance(delta, Delta) for one in delta.logprobs]
    text = "".join(delta.text for delta in deltas if isinstance(delta, Delta))
    assert b"".join(one.bytes for one in told).decode("utf-8", "replace") == text
    for one in told:
        assert one.logprob <= 0
        assert len(one.top) == 2
        assert one.top[0].logprob == pytest.approx(one.logprob)
        assert one.top[0].logprob >= one.top[1].logprob


async def until_done(stream: strata.Stream) -> Any:
    while stream.summary is None:
        await trio.lowlevel.checkpoint()
        yield


async def test_a_prompt_longer_than_the_context_is_refused_naming_both_sizes(tiny_model_path: Path) -> None:
    """B11: also one that is long enough to be tokenised on a thread."""
    async with strata.open_runtime(tiny_model_path, threads=1, context=256) as runtime:
        with pytest.raises(PromptTooLong, match="256 tokens") as caught:
            await answer(runtime, question(3000))
        assert caught.value.limit == 256
        assert caught.value.tokens > 1000
        text, _ = await answer(runtime, HELLO, max_tokens=3)
        assert isinstance(text, str)


async def test_who_leaves_while_a_long_prompt_is_tokenised_does_not_wait_for_it(tiny_model_path: Path) -> None:
    """B25: before the submit."""
    async with strata.open_runtime(tiny_model_path, threads=1) as runtime:
        with trio.move_on_after(0.01) as scope:
            await answer(runtime, question(2_000_000))
        assert scope.cancelled_caught
        assert runtime.statistics().ended == 0
        assert not any(info.kind == "request" for info in runtime.tree())


def open_files() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue
    return found


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "strata" in thread.name.lower()]


@pytest.mark.parametrize("end", ["leaves", "error", "cancelled"])
async def test_leaving_the_runtime_leaves_no_thread_and_no_open_file(tiny_model_path: Path, end: str) -> None:
    """B42: with requests under way, however it is left."""
    gc.collect()
    files, threads = open_files(), threading.active_count()
    with trio.CancelScope() as scope:
        try:
            async with strata.open_runtime(tiny_model_path, chunk_tokens=64) as runtime:
                assert our_threads()
                async with runtime.chat(question(500), max_tokens=50, ignore_eos=True) as stream:
                    await anext(stream)
                    if end == "error":
                        raise LookupError("mine")
                    if end == "cancelled":
                        scope.cancel()
                        await trio.sleep_forever()
        except LookupError:
            assert end == "error"
    assert scope.cancelled_caught == (end == "cancelled")
    assert our_threads() == []
    # Trio keeps a worker of its own for a few seconds.
    assert threading.active_count() <= threads + 1
    gc.collect()
    assert open_files() <= files


async def test_a_trace_has_a_line_for_each_slice_and_each_decoded_row(tiny_model_path: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    async with strata.open_runtime(tiny_model_path, trace=trace, chunk_tokens=64, threads=1) as runtime:
        _, summary = await answer(runtime, question(100), max_tokens=5, ignore_eos=True)
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [line["what"] for line in lines].count("decode") == 4
    assert [line["what"] for line in lines].count("slice") >= summary.figures.prompt_tokens // 64
    assert all(line["state"] for line in lines)


# -- what refuses the start -----------------------------------------------------------------------------------------


async def opening(*args: Any, **named: Any) -> None:
    async with strata.open_runtime(*args, **named):
        raise AssertionError("it opened")


async def test_a_model_that_can_t_be_used_refuses_the_start_in_one_line(tiny_model_path: Path, tmp_path: Path) -> None:
    """B37: missing, cut short, of an unknown kind; and the error comes as itself, in no group."""
    cut, other = tmp_path / "cut.gguf", tmp_path / "other.gguf"
    cut.write_bytes(tiny_model_path.read_bytes()[:-1000])
    other.write_text("not a model")
    for path in (tmp_path / "missing.gguf", cut, other, tmp_path):
        with pytest.raises(ModelError) as caught:
            await opening(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert our_threads() == []


async def test_settings_that_can_t_be_used_refuse_the_start_and_name_themselves(
    tiny_model_path: Path, tmp_path: Path
) -> None:
    """B37: before the engine is built, while it is, and where its file can't be written."""
    for named, setting in (
        ({"max_running": 0}, "max_running"),
        ({"no_such": 1}, "no_such"),
        ({"context": 4096}, "context"),
        ({"kv_mib": 10**9}, "kv_mib"),
        ({"trace": tmp_path / "nowhere" / "trace"}, "trace"),
    ):
        with pytest.raises(ConfigError) as caught:
            await opening(tiny_model_path, **named)
        assert caught.value.setting == setting
    assert our_threads() == []


async def test_settings_come_as_one_value_or_by_name_and_not_both(tiny_model_path: Path) -> None:
    async with strata.open_runtime(tiny_model_path, settings=Settings.of(max_running=2, threads=1)) as runtime:
        assert runtime.settings.scheduler.max_running == 2
    with pytest.raises(TypeError, match="not both"):
        await opening(tiny_model_path, settings=Settings.of(), max_running=2)
