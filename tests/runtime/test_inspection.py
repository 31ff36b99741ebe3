"""The tree, one actor, the counts and the metrics: what people see of a runtime, and what they never see."""

from __future__ import annotations

import pytest
import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from scripted_runtime import CHUNK, Scene, scripted
from trio.testing import MockClock

from strata.errors import UnknownRequest

LONG = 16 * CHUNK


def samples(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Value by name and the labels that are not the model's."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k not in ("model_name", "engine"))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_the_tree_shows_each_actor_after_its_parent_and_requests_by_their_own_state(
    autojump_clock: MockClock,
) -> None:
    async with scripted(max_running=1) as scene, trio.open_nursery() as nursery:
        nursery.start_soon(scene.ask, "reads", LONG, 2)
        await trio.sleep(0.01)
        nursery.start_soon(scene.ask, "waits", LONG, 2)
        await trio.sleep(0.01)
        tree = scene.runtime.tree()
        assert [(info.id, info.kind, info.state, info.parent) for info in tree] == [
            ("runtime", "runtime", "ready", None),
            ("engine", "engine", "running", "runtime"),
            ("dispatcher", "dispatcher", "running", "runtime"),
            ("request-1", "request", "reading", "runtime"),
            ("request-2", "request", "queued", "runtime"),
        ]
        assert tree[3].figures is not None
        assert tree[3].figures.prompt_tokens == LONG
        assert tree[3].since < tree[4].since


async def test_one_actor_shows_its_history_with_times_and_reasons(autojump_clock: MockClock) -> None:
    async with scripted() as scene:
        async with scene.chat("lives", 40, 5) as stream:
            await trio.sleep(0.001)
            living = scene.runtime.actor(stream.id)
            assert [change.state for change in living.history] == ["queued", "reading"]
            assert living.outcome is None
            await stream.text()
        ended = scene.runtime.actor(stream.id)
        assert [change.state for change in ended.history] == ["queued", "reading", "decoding", "done"]
        assert [change.at for change in ended.history] == sorted(change.at for change in ended.history)
        assert ended.outcome == "completed (length)"
        assert ended.info.state == "done"
        assert [change.state for change in scene.runtime.actor("engine").history] == ["starting", "running"]
        for unknown in ("request-77", "request-", "nobody"):
            with pytest.raises(UnknownRequest):
                scene.runtime.actor(unknown)


async def test_what_is_shown_has_no_word_of_a_prompt_or_an_answer(autojump_clock: MockClock) -> None:
    """B65"""
    async with scripted() as scene:
        async with scene.chat("confidential", 60, 5, temperature=0) as stream:
            shown = [
                repr(scene.runtime.tree()),
                repr(scene.runtime.actor(stream.id)),
                repr(scene.runtime),
                repr(stream),
            ]
            text = await stream.text()
            shown += [repr(scene.runtime.tree()), repr(scene.runtime), repr(stream)]
        shown += [repr(scene.runtime.actor(stream.id)), generate_latest(scene.runtime.registry).decode()]
        assert not any("confidential" in one or text in one for one in shown)


async def test_of_a_long_history_the_beginning_and_the_end_are_kept(autojump_clock: MockClock) -> None:
    async with scripted(max_running=1) as scene, trio.open_nursery() as nursery:
        async with scene.chat("often parked", LONG, 2) as stream:
            for n in range(12):
                await trio.sleep(0.03)
                await scene.ask(f"short {n}", 30, 1)
            whole = scene.runtime.actor(stream.id).history
        kept = scene.runtime.actor(stream.id)
        assert len(whole) > 20
        assert [change.state for change in kept.history[:2]] == ["queued", "reading"]
        assert len(kept.history) == 8
        assert kept.history[-1].state == "done"
        nursery.cancel_scope.cancel()


async def run_a_few(scene: Scene) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.ask, "long", LONG, 10)
        await trio.sleep(0.1)
        await scene.ask("short", 40, 5)
        with trio.move_on_after(0.05):
            await scene.ask("leaves", LONG, 10)


async def test_the_metrics_count_what_happened(autojump_clock: MockClock) -> None:
    async with scripted(max_running=1) as scene:
        await run_a_few(scene)
        found = samples(scene.runtime.registry)
    assert found["vllm:request_success_total", "length"] == 2
    assert found["vllm:request_success_total", "abort"] == 1
    assert found[("vllm:generation_tokens_total",)] == 15
    assert found[("vllm:prompt_tokens_total",)] >= LONG + 40
    assert found[("vllm:time_to_first_token_seconds_count",)] == 2
    assert found[("vllm:inter_token_latency_seconds_count",)] == 13
    assert found[("vllm:e2e_request_latency_seconds_count",)] == 2
    assert found[("vllm:num_preemptions_total",)] == found["strata_parks_total", "short"] == 1
    assert found[("strata_resumes_total",)] == 1
    assert found["strata_parked_seconds_count", "long", "0"] == 1
    parked_s = found["strata_parked_seconds_sum", "long", "0"]
    assert found["strata_parked_by_reason_seconds_total", "short"] == parked_s > 0
    assert found["strata_engine_seconds_count", "short", "0"] == 1
    assert found["strata_queue_wait_seconds_count", "short", "0"] == 1
    assert found[("strata_cancel_to_free_seconds_count",)] == 1
    assert found[("strata_cancel_to_free_seconds_sum",)] == 0
    assert found[("strata_slice_seconds_count",)] == sum(1 for _ in scene.engine.log)
    assert found[("strata_give_way_seconds_count",)] > 3


async def test_gauges_are_read_when_they_are_asked_for(autojump_clock: MockClock) -> None:
    async with scripted(max_running=1) as scene, trio.open_nursery() as nursery:
        idle = samples(scene.runtime.registry)
        assert idle["strata_requests", "reading"] == 0
        assert idle[("vllm:kv_cache_usage_perc",)] == 0
        nursery.start_soon(scene.ask, "long", LONG, 10)
        await trio.sleep(0.1)
        nursery.start_soon(scene.ask, "short", 40, 5)
        await trio.sleep(0.02)
        busy = samples(scene.runtime.registry)
        assert busy["strata_requests", "parked"] == 1
        assert busy["strata_requests", "reading"] == 1
        assert busy[("vllm:num_requests_running",)] == 1
        assert busy[("vllm:num_requests_waiting",)] == 1
        assert busy["vllm:num_requests_waiting_by_reason", "deferred"] == 1
        assert 0 < busy[("vllm:kv_cache_usage_perc",)] < 1
        assert busy["strata_pages", "free"] + busy["strata_pages", "held"] == 256
        assert busy["strata_mailbox_depth", "dispatcher"] == 0
        assert busy["strata_workspaces", "used"] + busy["strata_workspaces", "free"] == 2
        assert busy[("strata_engine_incarnation",)] == 1


async def test_two_runtimes_share_no_metric(autojump_clock: MockClock) -> None:
    async with scripted(served_name="one") as one, scripted(served_name="other") as other:
        await one.ask("a", 40, 5)
        assert samples(one.runtime.registry)[("vllm:generation_tokens_total",)] == 5
        assert samples(other.runtime.registry)[("vllm:generation_tokens_total",)] == 0
        assert b'model_name="one"' in generate_latest(one.runtime.registry)
        assert one.runtime.model.id == "one"
        assert one.runtime.model.aliases == ("scripted",)
