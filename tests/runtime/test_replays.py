"""With `on_engine_death = "replay"` an engine's death is a pause: the same bytes come, later (B31)."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
from scripted_runtime import CHUNK, SLICES, Engines, Scene, read_some, scripted
from trio.testing import MockClock, wait_all_tasks_blocked

from strata.config import Settings
from strata.engine.from_file import make_engine
from strata.engine.host import ThreadHost
from strata.errors import EngineUnavailable, PromptTooLong, ShuttingDown
from strata.messages import Open
from strata.models import open_model
from strata.runtime import open_runtime
from strata.testing import Fault, Script, ScriptedEngine

LONG = 8 * CHUNK
ASKS = {
    "decodes": {"tokens": 40, "max_tokens": 30, "priority": 1},
    "parked": {"tokens": LONG, "max_tokens": 4, "temperature": 1.0, "seed": 7},
    "reads": {"tokens": LONG, "max_tokens": 4, "priority": 1},
    "queued": {"tokens": LONG, "max_tokens": 4, "temperature": 1.0, "seed": 8},
}


async def ask_all(scene: Scene) -> None:
    """So that at some time one decodes, one is parked, one reads and one is queued."""
    async with trio.open_nursery() as nursery:
        for n, (name, named) in enumerate(ASKS.items()):
            nursery.start_soon(partial(scene.ask, name, at=0.04 * n, **named))


async def all_texts(engines: Engines, **named: Any) -> Scene:
    settings = {"max_running": 2, "max_priority": 1, "on_engine_death": "replay", **named}
    async with scripted(engines, **settings) as scene:
        await ask_all(scene)
        assert scene.is_empty()
    return scene


async def test_a_death_changes_no_byte_of_any_stream(autojump_clock: MockClock) -> None:
    """B31: queued, reading, parked and decoding; greedy and seeded.

    The scripted engine refuses what was not written.
    """
    undisturbed = await all_texts(Engines(pages=256))
    slices, steps = (undisturbed.engine.ran(kind) for kind in ("slice", "step"))
    assert min(slices, steps) > 20
    faults = [Fault(slice=n) for n in range(1, slices + 1, 6)] + [Fault(step=n) for n in range(1, steps + 1, 3)]
    for fault in faults:
        engines = Engines([fault], pages=256)
        scene = await all_texts(engines)
        assert scene.texts == undisturbed.texts
        assert len(engines.made) == 2
        for name, summary in scene.summaries.items():
            assert summary.figures.written_tokens == ASKS[name]["max_tokens"]
            assert summary.figures.read_tokens == ASKS[name]["tokens"]


async def test_deaths_again_and_again_change_no_byte_either(autojump_clock: MockClock) -> None:
    """B31: as often as `max_replays` and `restart_limit` allow."""
    undisturbed = await all_texts(Engines(pages=256))
    engines = Engines(*([Fault(slice=n)] for n in range(1, 40, 3)), pages=256)
    scene = await all_texts(engines, max_replays=20, restart_limit=20)
    assert scene.texts == undisturbed.texts
    assert len(engines.made) > 5


async def test_the_stream_stays_open_and_says_where_it_stands(autojump_clock: MockClock) -> None:
    """What was sent is not sent again; figures say that it is queued, and count no token twice."""
    engines = Engines([Fault(step=5)])
    async with scripted(engines, on_engine_death="replay") as scene:
        engines.settings["start_s"] = 5.0
        async with scene.chat("one", 40, 20, temperature=0) as stream:
            first = await read_some(stream, 5)
            await trio.sleep(1)
            now = stream.figures()
            assert (now.state, now.written_tokens) == ("queued", 5)
            assert not scene.runtime.health().ready
            text = first + await stream.text()
        assert len(text) == 20
        assert stream.summary is not None
        assert stream.summary.figures.longest_gap_s > 5
        counted = scene.runtime.registry.get_sample_value
        labels = {"model_name": "scripted", "engine": "0"}
        assert counted("vllm:generation_tokens_total", labels) == 20
        assert counted("vllm:prompt_tokens_total", labels) == 40
        history = [change.state for change in scene.runtime.actor("request-1").history]
        assert history == ["queued", "reading", "decoding", "queued", "reading", "decoding", "done"]
        opened = [told for told in engines.made[1].told if isinstance(told, Open)]
        assert [len(one.written) for one in opened] == [5]


class Poisoned(ScriptedEngine):
    """Dies whenever it comes to work for sequence 3."""

    def _due(self, work: Any) -> Fault | None:
        seqs = [work.seq] if not isinstance(work, list) else [one.seq for one in work]
        return Fault() if 3 in seqs else None


async def test_a_request_that_kills_engines_takes_nobody_with_it(autojump_clock: MockClock) -> None:
    """It dies alone the second time, and is not tried a third time."""
    made: list[ScriptedEngine] = []

    def make(incarnation: int) -> ScriptedEngine:
        made.append(Poisoned(incarnation=incarnation, chunk_tokens=CHUNK, slices_per_chunk=SLICES, page_tokens=16))
        return made[-1]

    errors: list[Exception] = []
    async with open_runtime(host=make, chunk_tokens=CHUNK, page_tokens=16, on_engine_death="replay") as runtime:
        scene = Scene(runtime, made[0])

        async def poison() -> None:
            with pytest.raises(EngineUnavailable) as caught:
                await scene.ask("poison", 40, 20)
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            for name in ("one", "two"):
                nursery.start_soon(scene.ask, name, 40, 20)
                await trio.sleep(0.05)
            nursery.start_soon(poison)
            await trio.sleep(0.05)
            nursery.start_soon(scene.ask, "late", 40, 20)
        assert len(made) == 3
        assert len(errors) == 1
        assert {name: len(text) for name, text in scene.texts.items()} == {"one": 20, "two": 20, "late": 20}
        assert scene.is_empty()


async def test_an_engine_that_is_replaced_by_its_operator_strands_nobody(autojump_clock: MockClock) -> None:
    """As often as he likes: such an end counts against nobody."""
    undisturbed = await all_texts(Engines(pages=256))
    engines = Engines(pages=256)
    async with scripted(engines, max_running=2, max_priority=1, on_engine_death="replay") as scene:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_all, scene)
            for _ in range(8):
                await trio.sleep(0.11)
                scene.runtime.restart_engine()
        assert scene.texts == undisturbed.texts
        assert len(engines.made) == 9


async def test_one_that_waits_for_its_replay_can_leave_and_is_ended_by_what_ends_all(autojump_clock: MockClock) -> None:
    """B25, R11: a drain lets it go on, for it has started; who leaves the runtime gets its error."""
    engines = Engines([Fault(step=3)])
    async with scripted(engines, on_engine_death="replay") as scene:
        engines.settings["start_s"] = 5.0
        async with scene.chat("leaves", 40, 20) as stream, scene.chat("stays", 40, 20) as other:
            await read_some(stream, 3)
            await trio.sleep(1)
            scene.runtime.cancel("request-1")
            await wait_all_tasks_blocked()
            scene.runtime.drain()
            assert len(await other.text()) == 20
        assert [told.seq for told in engines.made[1].told if isinstance(told, Open)] == [2]
    engines = Engines([Fault(step=3)], start_s=0.0)
    with pytest.RaisesGroup(ShuttingDown, flatten_subgroups=True):
        await _leave_while_it_waits(engines)


async def _leave_while_it_waits(engines: Engines) -> None:
    async with trio.open_nursery() as outside, scripted(engines, on_engine_death="replay") as scene:
        engines.settings["start_s"] = 5.0
        outside.start_soon(scene.ask, "cut", 40, 20)
        await trio.sleep(1)


async def test_one_that_is_too_large_for_the_next_engine_ends_with_an_error_event(autojump_clock: MockClock) -> None:
    engines = Engines([Fault(step=3)])
    async with scripted(engines, on_engine_death="replay") as scene:
        engines.settings["context"] = 50
        async with scene.chat("too large", 40, 20) as stream:
            assert len(await read_some(stream, 3)) == 3
            with pytest.raises(PromptTooLong, match="context is 50"):
                await stream.text()
        assert scene.is_empty()


async def test_a_stop_string_over_a_death_is_found(autojump_clock: MockClock) -> None:
    """B51: of the letters of one string some came before the death and some after."""
    script = Script(by_text={"one": "so far, so good and so on"})
    engines = Engines([Fault(step=10)], script=script)
    async with scripted(engines, on_engine_death="replay") as scene:
        async with scene.chat("one", 40, 60, stop=("so good",)) as stream:
            assert await stream.text() == "so far, "
        assert scene.is_empty()


# -- a real engine ----------------------------------------------------------------------------------------------------


class Mortal:
    """An engine that dies in the place of its n-th slice or step (None: never)."""

    def __init__(self, engine: Any, dies_at: int | None) -> None:
        self._engine = engine
        self._dies_at = dies_at
        self._ran = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def advance(self) -> bool:
        if self._dies_at is not None and self._ran + 1 >= self._dies_at:
            raise RuntimeError("killed")
        ran: bool = self._engine.advance()
        self._ran += ran
        return ran


class Tiny:
    """Makes a thread with an engine of the tiny model; the first of them is mortal."""

    def __init__(self, path: Path, settings: Settings, dies_at: int | None) -> None:
        self.file = open_model(path)
        self.engines: list[Mortal] = []
        self._settings = settings
        self._dies_at = dies_at

    def __call__(self, incarnation: int) -> ThreadHost:
        host: Any = ThreadHost(partial(self._make, incarnation), incarnation=incarnation)
        host.tokenizer, host.template = self.file.tokenizer, self.file.template
        return host

    def _make(self, incarnation: int) -> Any:
        mortal = Mortal(make_engine(self.file, self._settings), self._dies_at if incarnation == 1 else None)
        self.engines.append(mortal)
        return mortal


async def tiny_texts(path: Path, dies_at: int | None) -> tuple[dict[str, str], int]:
    """What a greedy and a seeded request get, and how many engines it took."""
    settings = Settings.of(threads=1, chunk_tokens=32, on_engine_death="replay", kv_mib=4)
    tiny = Tiny(path, settings, dies_at)
    texts: dict[str, str] = {}
    async with open_runtime(host=tiny, settings=settings) as runtime:

        async def ask(name: str, **named: Any) -> None:
            content = f"{name}: " + "the world and the system of it " * 3
            async with runtime.chat([{"role": "user", "content": content}], ignore_eos=True, **named) as stream:
                texts[name] = await stream.text()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(ask, "greedy", temperature=0, max_tokens=5))
            nursery.start_soon(
                partial(ask, "seeded", temperature=0.9, seed=3, max_tokens=7, repetition_penalty=1.2, min_tokens=2)
            )
        assert runtime.statistics().pages_held == 0
    return texts, len(tiny.engines)


async def test_a_real_engine_that_dies_at_any_boundary_is_replayed_byte_for_byte(tiny_model_path: Path) -> None:
    """B31: in the place of each slice and each step of a greedy and of a seeded request, side by side."""
    undisturbed, _ = await tiny_texts(tiny_model_path, None)
    # How many boundaries there are depends on how the two meet.
    for dies_at in count(1):
        texts, engines = await tiny_texts(tiny_model_path, dies_at)
        assert texts == undisturbed, f"it died in the place of slice or step {dies_at}"
        if engines == 1:
            break
    assert dies_at > 10
