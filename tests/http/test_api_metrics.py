"""What `/metrics` has: every figure that was promised, under its name and labels, and what some of them count."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio
from api_call import CHAT, call, chat
from prometheus_client.parser import text_string_to_metric_families

from strata.http.app import create_app
from strata.runtime import open_runtime
from strata.testing import Script, ScriptedEngine


def engine(**named: Any) -> ScriptedEngine:
    return ScriptedEngine(script=Script(by_text={"ping": "pong!"}), **named)


PLAIN = frozenset({"model_name", "engine"})
KIND = PLAIN | {"priority", "class"}
METRICS = {
    "vllm:num_requests_running": PLAIN,
    "vllm:num_requests_waiting": PLAIN,
    "vllm:num_requests_waiting_by_reason": PLAIN | {"reason"},
    "vllm:kv_cache_usage_perc": PLAIN,
    "vllm:num_preemptions": PLAIN,
    "vllm:prompt_tokens": PLAIN,
    "vllm:prompt_tokens_cached": PLAIN,
    "strata_pages_moved": PLAIN | {"to"},
    "vllm:prefix_cache_queries": PLAIN,
    "vllm:prefix_cache_hits": PLAIN,
    "vllm:generation_tokens": PLAIN,
    "vllm:spec_decode_num_draft_tokens": PLAIN,
    "vllm:spec_decode_num_accepted_tokens": PLAIN,
    "vllm:request_success": PLAIN | {"finished_reason"},
    "vllm:time_to_first_token_seconds": PLAIN,
    "vllm:inter_token_latency_seconds": PLAIN,
    "vllm:e2e_request_latency_seconds": PLAIN,
    "vllm:request_queue_time_seconds": PLAIN,
    "vllm:request_prefill_time_seconds": PLAIN,
    "vllm:request_decode_time_seconds": PLAIN,
    "strata_requests": PLAIN | {"state"},
    "strata_pages": PLAIN | {"state"},
    "strata_parked_bytes": PLAIN | {"where"},
    "strata_parks": PLAIN | {"reason"},
    "strata_resumes": PLAIN,
    "strata_parked_seconds": KIND,
    "strata_parked_by_reason_seconds": PLAIN | {"reason"},
    "strata_engine_seconds": KIND,
    "strata_queue_wait_seconds": KIND,
    "strata_queue_wait_max_seconds": PLAIN,
    "strata_give_way_seconds": PLAIN,
    "strata_slice_seconds": PLAIN,
    "strata_engine_incarnation": PLAIN,
    "strata_engine_restarts": PLAIN,
    "strata_cancel_to_free_seconds": PLAIN,
    "strata_mailbox_depth": PLAIN | {"actor"},
    "strata_tasks": PLAIN,
    "strata_workspaces": PLAIN | {"state"},
}
"""Every name and its labels.  A dashboard that was made for them goes on working, so none may change unseen."""

CONTRACT = """
num_requests_running num_requests_waiting num_requests_waiting_by_reason{reason=capacity|deferred} kv_cache_usage_perc
num_preemptions_total prompt_tokens_total prompt_tokens_cached_total generation_tokens_total
request_success_total{finished_reason} prefix_cache_queries_total prefix_cache_hits_total time_to_first_token_seconds
inter_token_latency_seconds e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds
request_decode_time_seconds
strata_requests{state=queued|reading|parked|decoding} strata_pages{state=free|held|cached|swapping}
strata_parked_bytes{where} strata_parks_total{reason} strata_resumes_total strata_parked_seconds{class,priority}
strata_queue_wait_seconds{class,priority} strata_queue_wait_max_seconds strata_give_way_seconds strata_slice_seconds
strata_engine_incarnation strata_engine_restarts_total strata_cancel_to_free_seconds strata_mailbox_depth{actor}
strata_workspaces{state}
"""
"""What has been promised: vLLM's names first, then ours.  A counter's name ends in `_total`."""
VALUES = {
    "vllm:num_requests_waiting_by_reason": {"capacity", "deferred"},
    "strata_requests": {"queued", "reading", "parked", "decoding"},
    "strata_pages": {"free", "held", "cached", "swapping"},
    "strata_parked_bytes": {"device", "arena"},
}
"""Of the one label that is not the model's."""


def test_every_metric_that_was_promised_is_there():
    promised = {}
    for name, told in re.findall(r"(\w+)(?:\{(.*?)\})?", CONTRACT):
        labels = {label.partition("=")[0] for label in told.split(",") if label}
        whole = name if name.startswith("strata_") else f"vllm:{name}"
        promised[whole.removesuffix("_total")] = PLAIN | labels
    assert {name: METRICS.get(name) for name in promised} == promised


async def test_the_longest_wait_in_the_queue_grows_by_the_clock_and_ends_with_it(autojump_clock):
    async with open_runtime(host=engine(slice_s=9.0), policy="fifo") as runtime, trio.open_nursery() as nursery:
        app = create_app(runtime)

        async def longest() -> float:
            text = (await call(app, "GET", "/metrics")).body.decode()
            (line,) = re.findall(r"^strata_queue_wait_max_seconds\{.*\} (.*)$", text, re.MULTILINE)
            return float(line)

        assert await longest() == 0
        for _ in range(3):
            nursery.start_soon(call, app, "POST", CHAT, chat("ping", max_tokens=1))
            await trio.sleep(1)
        assert await longest() == pytest.approx(2, abs=0.01)
        await trio.sleep(3)
        assert await longest() == pytest.approx(5, abs=0.01)
        await runtime.wait_idle()
        assert await longest() == 0


async def test_the_metrics_are_all_there_under_their_names_and_labels(autojump_clock):
    """Prometheus text; each histogram has counted something after a read that was parked and one that was left."""
    scripted = engine(slice_s=1.0, page_bytes=1000)
    async with open_runtime(host=scripted, policy="preempt", served_name="tiny") as runtime:
        app = create_app(runtime)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, app, "POST", CHAT, chat("a secret " * 300, max_tokens=2))
            await trio.sleep(1.5)
            nursery.start_soon(call, app, "POST", CHAT, chat("ping", max_tokens=2))
        with trio.move_on_after(1.5):
            await call(app, "POST", CHAT, chat("another secret " * 200))
        await runtime.wait_idle()
        answer = await call(app, "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.body.decode()
    told = [family for family in text_string_to_metric_families(text) if not family.name.endswith("_created")]
    families = {family.name: family.samples for family in told}
    labels = {name: {frozenset(s.labels) - {"le"} for s in samples} for name, samples in families.items()}
    assert labels == {name: {kind} for name, kind in METRICS.items()}
    assert {(s.labels["model_name"], s.labels["engine"]) for samples in families.values() for s in samples} == {
        ("tiny", "0")
    }
    counted = [name for name, samples in families.items() if any(s.name.endswith("_count") for s in samples)]
    assert [n for n in counted if not any(s.value for s in families[n] if s.name.endswith("_count"))] == []
    for name, values in VALUES.items():
        assert {v for s in families[name] for label, v in s.labels.items() if label not in PLAIN} <= values
    assert "secret" not in text
