"""Engines die and others take their place: who is told, who waits, who is served, and when there is no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from scripted_runtime import CHUNK, Engines, Scene, scripted
from trio.testing import MockClock, wait_all_tasks_blocked

from strata.errors import EngineUnavailable, ModelError, PromptTooLong, RequestCancelled, ShuttingDown, StrataError
from strata.messages import Grant, Open, Step
from strata.runtime import open_runtime
from strata.testing import Fault, ScriptedEngine

LONG = 16 * CHUNK


async def the_end(scene: Scene, name: str, tokens: int, most: int, ends: dict[str, Any], priority: int = 0) -> None:
    """How it ended, and when."""
    try:
        await scene.ask(name, tokens, most, priority=priority)
        ends[name] = ("text", trio.current_time())
    except StrataError as error:
        ends[name] = (error, trio.current_time())


def figure(scene: Scene, name: str) -> float | None:
    return scene.runtime.registry.get_sample_value(name, {"model_name": "scripted", "engine": "0"})


@asynccontextmanager
async def one_of_each(scene: Scene, ends: dict[str, Any]) -> AsyncIterator[None]:
    """One that decodes, one that is parked, one that reads and one that is queued; leaving waits for their ends."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(the_end, scene, "decodes", 40, 100, ends, 1)
        await trio.sleep(0.04)
        for name, priority in (("parked", 0), ("reads", 1), ("queued", 0)):
            nursery.start_soon(the_end, scene, name, LONG, 10, ends, priority)
            await trio.sleep(0.05)
        now = scene.runtime.statistics()
        assert (now.decoding, now.parked, now.reading, now.queued) == (1, 1, 1, 1)
        yield


@pytest.mark.parametrize("does", ["die", "raise", "vanish"])
async def test_the_queued_is_served_by_the_next_engine_and_the_others_end_at_once(
    does: Any, autojump_clock: MockClock
) -> None:
    """B30: queued, reading, parked and decoding when it dies.  B32: the next one hears of the queued one alone."""
    ends: dict[str, Any] = {}
    engines = Engines([Fault(does=does, slice=24)], pages=256)
    async with scripted(engines, max_running=2, max_priority=1) as scene:
        engines.settings["start_s"] = 5.0
        async with one_of_each(scene, ends):
            while len(ends) < 3:
                await trio.sleep(0.01)
            died = trio.current_time()
            health = scene.runtime.health()
            assert (health.state, health.ready, health.incarnation) == ("restarting", False, 1)
            assert "the engine died" in health.reason
            assert scene.runtime.statistics().queued == 1
        assert scene.runtime.health().ready
        assert scene.runtime.health().incarnation == 2
        for name in ("decodes", "parked", "reads"):
            error, at = ends[name]
            assert isinstance(error, EngineUnavailable)
            assert died - at < 0.1
        assert ends["queued"][0] == "text"
        assert len(scene.texts["queued"]) == 10
        assert (figure(scene, "strata_engine_restarts_total"), figure(scene, "strata_engine_incarnation")) == (1, 2)
        assert {told.seq for told in engines.made[1].told if isinstance(told, Open | Grant)} == {4}
        assert [told.n for told in engines.made[1].told if isinstance(told, Step)] > [scene.engine.log[-1].n]
        assert scene.is_empty()
        assert [(info.kind, info.restarts) for info in scene.runtime.tree()[1:]] == [("dispatcher", 0), ("engine", 1)]


async def test_who_comes_while_the_engine_is_being_started_waits_for_it(autojump_clock: MockClock) -> None:
    """B30"""
    engines = Engines([Fault(slice=1)])
    async with scripted(engines) as scene, trio.open_nursery() as nursery:
        engines.settings["start_s"] = 5.0
        with pytest.raises(EngineUnavailable, match="the engine died: it was told to"):
            await scene.ask("first", 40, 2)
        nursery.start_soon(scene.ask, "second", 40, 2)
        await trio.sleep(4)
        assert scene.ended == []
        await trio.sleep(1.1)
        assert scene.ended == ["second"]


async def test_engines_that_die_again_and_again_end_the_runtime_with_a_reason(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B36: each try comes later than the one before; then all are told, also who comes later."""
    born: list[float] = []
    engines = Engines(*[[Fault(slice=1)]] * 9, starts=lambda _n: born.append(trio.current_time()))
    ends: dict[str, Any] = {}
    settings = {"max_running": 1, "restart_limit": 4, "restart_backoff_s": 0.5}
    async with scripted(engines, **settings) as scene:
        async with trio.open_nursery() as nursery:
            for n in range(7):
                nursery.start_soon(the_end, scene, f"n{n}", 40, 2, ends)
        assert all(isinstance(error, EngineUnavailable) for error, _ in ends.values())
        assert len(ends) == 7
        reason = await scene.runtime.wait_failed()
        assert reason == "the engine died 5 times in 300 s, the last time: it was told to"
        assert scene.runtime.health().state == "failed"
        with pytest.raises(EngineUnavailable, match="5 times"):
            await scene.ask("late", 40, 2)
        assert [info.kind for info in scene.runtime.tree()] == ["runtime", "dispatcher"]
        assert scene.runtime.statistics().pages_held == 0
        with pytest.raises(EngineUnavailable):
            scene.runtime.restart_engine()
    assert len(engines.made) == 5
    # The first successor comes at once.  An engine's own actor says *starting* while it waits for its time.
    assert born == pytest.approx([0, 0, 0, 0.5, 1.5], abs=0.01)


async def test_deaths_that_are_far_apart_end_nothing(autojump_clock: MockClock) -> None:
    engines = Engines(*[[Fault(slice=1)]] * 6)
    async with scripted(engines, restart_limit=1, restart_window_s=60) as scene:
        for _ in range(6):
            with pytest.raises(EngineUnavailable):
                await scene.ask("x", 40, 2)
            await trio.sleep(60)
        await scene.ask("served", 40, 2)
        assert figure(scene, "strata_engine_restarts_total") == 6


async def test_a_limit_of_none_ends_the_runtime_at_the_first_death(autojump_clock: MockClock) -> None:
    engines = Engines([Fault(slice=1)])
    async with scripted(engines, restart_limit=0) as scene:
        with pytest.raises(EngineUnavailable):
            await scene.ask("x", 40, 2)
        assert await scene.runtime.wait_failed() == "the engine died: it was told to"
    assert len(engines.made) == 1


class NotThere(ScriptedEngine):
    """Its model file has gone."""

    async def run(self, *_: Any, **__: Any) -> None:
        await trio.sleep(1)
        raise ModelError("there is no file")


class Unmade(Engines):
    """The second one can't be made, and so the third has to wait a while."""

    def __call__(self, incarnation: int) -> ScriptedEngine:
        if incarnation == 2:
            raise OSError("too many open files")
        return super().__call__(incarnation)


class Flaky(Unmade):
    """And the third finds no model."""

    def __call__(self, incarnation: int) -> ScriptedEngine:
        if incarnation == 3:
            return NotThere(incarnation=incarnation)
        return super().__call__(incarnation)


async def test_what_hinders_a_later_engine_from_starting_is_a_death_like_any_other(autojump_clock: MockClock) -> None:
    """B37 is about the first start alone; B36 counts these."""
    engines = Flaky([Fault(slice=1)])
    async with scripted(engines, restart_limit=3) as scene:
        with pytest.raises(EngineUnavailable):
            await scene.ask("x", 40, 2)
        await scene.ask("served", 40, 2)
        assert scene.runtime.health().incarnation == 4
    with pytest.raises(ModelError):
        async with open_runtime(host=lambda n: NotThere(incarnation=n)):
            pass
    engines = Flaky([Fault(slice=1)])
    async with scripted(engines, restart_limit=2) as scene:
        with pytest.raises(EngineUnavailable):
            await scene.ask("x", 40, 2)
        assert "3 times in 300 s, the last time: there is no file" in await scene.runtime.wait_failed()


class Stuck(ScriptedEngine):
    """Says that it died, as a watcher does of a thread that hangs; what runs there can't be ended."""

    left_behind = True


async def test_an_engine_that_can_t_be_ended_has_no_successor(autojump_clock: MockClock) -> None:
    """B34: as far as a thread goes; it would have the device's memory still."""
    host = Stuck(chunk_tokens=CHUNK, faults=[Fault(slice=2, reason="no progress for 30 s")])
    async with open_runtime(host=lambda _n: host, chunk_tokens=CHUNK) as runtime:
        with pytest.raises(EngineUnavailable, match="no progress"):
            async with runtime.chat([{"role": "user", "content": "x" * 40}]) as stream:
                await stream.text()
        assert "hangs on its thread" in await runtime.wait_failed()
        assert not runtime.health().ready


async def test_a_smaller_successor_refuses_by_name_who_can_never_fit_it(autojump_clock: MockClock) -> None:
    """Free memory may have changed: the ledger is built from the successor's own words."""
    engines = Engines([Fault(slice=1)])
    ends: dict[str, Any] = {}
    async with scripted(engines, max_running=1) as scene:
        engines.settings["pages"] = 10
        async with trio.open_nursery() as nursery:
            for name, tokens in (("dies", 40), ("large", 150), ("fits", 140)):
                nursery.start_soon(the_end, scene, name, tokens, 20, ends)
                await wait_all_tasks_blocked()
        assert isinstance(ends["dies"][0], EngineUnavailable)
        assert isinstance(ends["large"][0], PromptTooLong)
        assert ends["large"][0].limit == 160
        assert ends["fits"][0] == "text"
        assert scene.runtime.statistics().pages_free == 10


@pytest.mark.parametrize("after", [0.0, 0.25, 0.5, 3.0, 5.5, 5.501, 5.52, 5.53, 5.6])
async def test_who_leaves_while_an_engine_is_being_started_leaves_no_trace(
    after: float, autojump_clock: MockClock
) -> None:
    """B25: in the backoff, while the model is loaded, and about the time at which it is up.  B24: the others stay."""
    engines = Unmade([Fault(slice=2)])
    ends: dict[str, Any] = {}
    async with scripted(engines, max_running=1, restart_backoff_s=0.5) as scene, trio.open_nursery() as nursery:
        engines.settings["start_s"] = 5.0
        engines.made[0].slice_s = 0.0
        for name in ("dies", "leaves", "stays"):
            nursery.start_soon(the_end, scene, name, 40, 2, ends)
            await wait_all_tasks_blocked()
        await trio.sleep(after)
        was_served = "leaves" in ends
        if not was_served:
            scene.runtime.cancel("request-2")
        await wait_all_tasks_blocked()
        assert was_served or isinstance(ends["leaves"][0], RequestCancelled)
    assert len(scene.texts["stays"]) == 2
    opened = [told.seq for told in engines.made[-1].told if isinstance(told, Open)]
    assert opened == [3] if after < 5.5 else opened in ([3], [2, 3])
    assert engines.made[-1].held_pages == 0


# -- maintenance ------------------------------------------------------------------------------------------------------


async def test_an_engine_that_is_replaced_strands_nobody(autojump_clock: MockClock) -> None:
    """What has started is told at once, before the old engine has stopped; the queued one is served by the next."""
    ends: dict[str, Any] = {}
    engines = Engines(pages=256)
    async with scripted(engines, max_running=2, max_priority=1) as scene:
        async with one_of_each(scene, ends):
            assert scene.runtime.restart_engine()
            assert not scene.runtime.restart_engine()
            await wait_all_tasks_blocked()
            assert ends.keys() == {"decodes", "parked", "reads"}
            assert all(isinstance(error, EngineUnavailable) for error, _ in ends.values())
            assert scene.runtime.health().state == "restarting"
            assert not scene.runtime.restart_engine(), "the old one has not ended"
        assert ends["queued"][0] == "text"
        assert scene.is_empty()
    assert len(engines.made) == 2


async def test_an_engine_that_does_nothing_is_replaced_at_once_and_as_often_as_asked(autojump_clock: MockClock) -> None:
    """An operator's restarts are no deaths."""
    engines = Engines()
    async with scripted(engines, restart_limit=1) as scene:
        for n in range(2, 6):
            before = trio.current_time()
            scene.runtime.restart_engine()
            await wait_all_tasks_blocked()
            assert (scene.runtime.health().incarnation, trio.current_time() - before) == (n, 0)
            await scene.ask("x", 40, 2)
    async with scripted() as scene:
        with pytest.raises(EngineUnavailable, match="replaced"):
            scene.runtime.restart_engine()


async def test_an_engine_that_hangs_is_replaced_when_an_operator_asks(autojump_clock: MockClock) -> None:
    """Its readers are told at once; it is given up after its time to stop."""
    engines = Engines([Fault(does="hang", slice=2)])
    ends: dict[str, Any] = {}
    async with scripted(engines) as scene, trio.open_nursery() as nursery:
        nursery.start_soon(the_end, scene, "hangs", 40, 2, ends)
        await trio.sleep(1)
        scene.runtime.restart_engine()
        nursery.start_soon(the_end, scene, "waits", 40, 2, ends)
        await trio.sleep(20)
        assert ends["hangs"][1] == 1
        assert ends["waits"][0] == "text"
        assert ends["waits"][1] == pytest.approx(11, abs=0.1)


@pytest.mark.parametrize("after", [0.0, 0.25, 3.0, 5.499])
async def test_a_load_that_is_under_way_is_begun_anew_when_an_operator_asks(
    after: float, autojump_clock: MockClock
) -> None:
    """In the backoff, while the model is loaded, and just before it is up.  It counts as no death."""
    engines = Unmade([Fault(slice=1)])
    ends: dict[str, Any] = {}
    async with scripted(engines, max_running=1, restart_limit=2, restart_backoff_s=0.5) as scene:
        async with trio.open_nursery() as nursery:
            engines.settings["start_s"] = 5.0
            for name in ("dies", "waits"):
                nursery.start_soon(the_end, scene, name, 40, 2, ends)
                await wait_all_tasks_blocked()
            while "dies" not in ends:
                await trio.sleep(0.01)
            await trio.sleep(after)
            for again in range(4):
                asked = trio.current_time()
                assert scene.runtime.restart_engine(), again
                await trio.sleep(1)
                assert scene.runtime.health().state == "restarting"
        assert ends["waits"][0] == "text"
        assert ends["waits"][1] == pytest.approx(asked + 5, abs=0.2)
        assert scene.runtime.health().incarnation == 7
        assert scene.is_empty()
        await scene.ask("later", 40, 2)


class OnThread(ScriptedEngine):
    """Is loaded to its end, as on a thread."""

    ends_at_once = False


async def test_a_load_on_a_thread_is_let_go_on_and_the_operator_is_told(autojump_clock: MockClock) -> None:
    async with open_runtime(host=lambda n: OnThread(incarnation=n, start_s=n - 1.0)) as runtime:
        assert runtime.restart_engine()
        await trio.sleep(0.5)
        assert not runtime.restart_engine()
        await trio.sleep(0.6)
        assert (runtime.health().state, runtime.health().incarnation) == ("ready", 2)
        assert runtime.restart_engine()


@pytest.mark.parametrize("leaves_after", [0.01, 0.6, 3.0])
async def test_a_runtime_is_left_in_order_while_an_engine_is_being_started(
    leaves_after: float, autojump_clock: MockClock
) -> None:
    """B42: in the backoff, and while the model is loaded; who is queued gets its end."""
    engines = Engines([Fault(slice=1)], [Fault()])
    ends: dict[str, Any] = {}
    async with trio.open_nursery() as outside:
        async with scripted(engines, max_running=1, restart_backoff_s=0.5) as scene:
            engines.settings["start_s"] = 4.0
            for name in ("dies", "queued"):
                outside.start_soon(the_end, scene, name, 40, 2, ends)
                await wait_all_tasks_blocked()
            await trio.sleep(leaves_after)
        assert trio.current_time() < 12
    assert isinstance(ends["dies"][0], EngineUnavailable)
    assert isinstance(ends["queued"][0], ShuttingDown)
    assert [info.kind for info in scene.runtime.tree()] == ["runtime"]


async def test_a_restart_that_was_asked_for_does_not_outlive_the_runtime(autojump_clock: MockClock) -> None:
    """B42"""
    engines = Engines([Fault(does="hang", slice=1)])
    async with scripted(engines) as scene:
        with trio.move_on_after(0.5):
            await scene.ask("x", 40, 2)
        scene.runtime.restart_engine()
    assert len(engines.made) == 1
    assert [info.kind for info in scene.runtime.tree()] == ["runtime"]
