"""A runtime whose engine has a process of its own is the same runtime, and leaves as little behind."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

import pytest
import trio
from attrs import evolve

import strata
from strata.config import Settings
from strata.engine.process_host import ProcessHost
from strata.engine.spec import file_engine
from strata.errors import ConfigError, EngineUnavailable, ModelError
from strata.models import open_model
from strata.testing.tiny_model import write_tiny_model

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


async def ask(runtime: strata.Runtime) -> str:
    async with runtime.chat(QUESTION, max_tokens=12, temperature=0, ignore_eos=True) as stream:
        return await stream.text()


async def answer(model: Path, **named: object) -> str:
    settings = Settings.of(threads=1, kv_mib=16, **named)
    async with strata.open_runtime(model, settings=settings) as runtime:
        return await ask(runtime)


def left() -> tuple[set[str], list[str]]:
    """Open files, and children that run or are not buried."""
    gc.collect()
    children = [(task / "children").read_text() for task in Path("/proc/self/task").iterdir()]
    return set(os.listdir("/dev/fd")), "".join(children).split()


async def test_an_engine_in_a_process_answers_as_one_on_a_thread_and_leaves_nothing(tiny_model_path: Path) -> None:
    """B42: no child process and no open file."""
    on_thread = await answer(tiny_model_path, engine_host="thread")
    before = left()
    assert await answer(tiny_model_path, engine_host="process", engine_memory_mib=4096) == on_thread
    assert left() == before


async def test_a_setting_that_the_process_can_not_keep_refuses_the_start_by_name(tiny_model_path: Path) -> None:
    """B37: found in another process, and the same error as on a thread."""
    said = []
    for host in ("thread", "process"):
        with pytest.raises(ConfigError) as caught:
            async with strata.open_runtime(tiny_model_path, engine_host=host, threads=1, context=1 << 20):
                pytest.fail("it must not start")
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert said[0].startswith("context: ")


@pytest.mark.parametrize("host", ["thread", "process"])
async def test_a_file_that_the_engine_and_the_tokenizer_both_refuse_is_one_error(
    tiny_model_path: Path, tmp_path: Path, host: str
) -> None:
    """B37: they open it side by side, as it has an index; its bytes are no longer those of the index."""
    path = tmp_path / "cut.gguf"
    shutil.copy(tiny_model_path, path)
    open_model(path)
    os.truncate(path, path.stat().st_size - 64)
    before = left()
    with pytest.raises(ModelError, match="cut short"):
        async with strata.open_runtime(path, engine_host=host, threads=1, kv_mib=16):
            pytest.fail("it must not start")
    # A thread that has said what hindered it may hold its last frames for a moment longer.
    with trio.fail_after(5):
        while left() != before:
            await trio.sleep(0.01)


async def test_an_engine_is_not_started_anew_on_another_file_than_the_one_that_is_served(tmp_path: Path) -> None:
    """Its tokens would be another vocabulary's, and what is replayed another model's."""
    path = write_tiny_model(tmp_path / "tiny.gguf", seed=1)
    settings = Settings.of(engine_host="process", threads=1, kv_mib=16, restart_limit=0)
    async with strata.open_runtime(path, settings=settings) as runtime:
        await ask(runtime)
        write_tiny_model(tmp_path / "other.gguf", seed=2).replace(path)
        runtime.restart_engine()
        assert "it is another file than the one whose vocabulary is served" in await runtime.wait_failed()


async def test_an_engine_that_runs_out_of_its_memory_dies_and_the_runtime_goes_on(tiny_model_path: Path) -> None:
    """B30: who was served by it is told; the next one is served by the next engine."""
    settings = Settings.of(threads=1, kv_mib=16, engine_memory_mib=4096)
    modest = file_engine(tiny_model_path, settings)

    def make(incarnation: int) -> ProcessHost:
        spec = evolve(modest, maker="hungry_engine:hungry") if incarnation == 1 else modest
        return ProcessHost(spec, incarnation=incarnation, settings=settings.hosting)

    before = left()
    async with strata.open_runtime(tiny_model_path, settings=settings, host=make) as runtime:
        with pytest.raises(EngineUnavailable, match="MemoryError"):
            await ask(runtime)
        assert await ask(runtime) == await answer(tiny_model_path, engine_host="thread")
        assert runtime.health().incarnation == 2
        assert runtime.statistics().pages_held == 0
    assert left() == before


async def test_memory_that_its_limit_does_not_give_refuses_the_start_in_one_line(tiny_model_path: Path) -> None:
    """B37."""
    named = {"engine_host": "process", "threads": 1, "kv_mib": 512, "engine_memory_mib": 400}
    before = left()[1]
    with pytest.raises(ConfigError, match=r"^engine_memory_mib: memory ran out at 400 MiB") as caught:
        async with strata.open_runtime(tiny_model_path, **named):
            pytest.fail("it must not start")
    assert "\n" not in str(caught.value)
    assert left()[1] == before


def test_what_is_sent_to_the_process_holds_no_secret(tiny_model_path: Path) -> None:
    """B64: an engine needs no key."""
    settings = Settings.of(api_keys=("s3cr3t",), admin_key="s3cr3t")
    assert "s3cr3t" not in repr(file_engine(tiny_model_path, settings))
