"""`strata bench`: figures of a tiny model; which they are is not asserted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strata.bench.contention import contention
from strata.bench.newer_step import TURNS, Talk, newer_step
from strata.bench.overhead import Heard, overhead, row
from strata.bench.roofs import Roofs, above
from strata.bench.throughput import left_s, throughput
from strata.cli import main
from strata.config import Settings
from strata.engine.host import ThreadHost
from strata.errors import ConfigError, DeviceMissing, EngineUnavailable
from strata.messages import EngineDied, FromEngine, Seq, SeqFailed
from strata.simulate.plot import can_plot
from strata.testing.tiny_model import write_tiny_model


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit code and what was printed."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def nothing(_text: str) -> None:
    pass


def test_reading_and_decoding_are_measured_and_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_model_path: Path
) -> None:
    path = tmp_path / "figures.json"
    model = ("--model", str(tiny_model_path), "--threads", "1")
    code, out, err = run(capsys, "throughput", *model, "--repeats", "3", "--json", str(path))
    assert code == 0
    said = err.splitlines()
    assert said[0].startswith("1 of 5: reading after 0 tokens; about ")
    assert said[-1].startswith("5 of 5: decoding 8 rows after 0 tokens; about ")
    assert "tokens/s" in out
    whole = json.loads(path.read_text())
    assert whole["repeats"] == 3
    assert [(row["what"], row["context"], row["rows"]) for row in whole["rows"]] == [
        ("read", 0, 1),
        ("read", 1024, 1),
        ("decode", 0, 1),
        ("decode", 0, 4),
        ("decode", 0, 8),
    ]
    for one in whole["rows"]:
        assert len(one["samples"]) == 3
        assert min(one["samples"]) <= one["tokens_per_s"] <= max(one["samples"])


def test_what_a_short_context_or_few_pages_leave_no_room_for_is_left_out_and_said(tmp_path: Path) -> None:
    long = write_tiny_model(tmp_path / "long.gguf", context=5000, layers=1)
    settings = Settings.of(threads=1, kv_mib=5, chunk_tokens=512, context=4700)
    report = throughput(long, settings, 1, nothing)
    assert [(row["what"], row["context"], row["rows"]) for row in report.rows if row["context"] == 4096] == [
        ("read", 4096, 1),
        ("decode", 4096, 1),
        ("decode", 4096, 4),
    ]
    assert report.left_out == ("decoding 8 rows after 4,096 tokens: 520 pages are needed and 320 are there",)


def test_each_operation_is_measured_of_lone_rows_and_of_a_slice(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_model_path: Path
) -> None:
    path = tmp_path / "figures.json"
    model = ("--model", str(tiny_model_path), "--threads", "1", "--repeats", "2")
    code, out, err = run(capsys, "operations", *model, "--json", str(path))
    assert code == 0
    said = err.splitlines()
    assert len(set(said)) == len(said)
    assert "attention after 1,024 tokens (rows: 8)" in said
    assert "GFLOP/s" in out
    assert "left out: attention after 4,096 tokens: the context is 2,048" in out
    report = json.loads(path.read_text())
    found = report["rows"]
    roofs, rows = found[:2], found[2:]
    # NumPy draws no other on the device.
    drawn = ["likeliest token"] if "numpy" in report["device"] else ["likeliest token", "draw", "draw, top_p 0.95"]
    assert [one["what"] for one in roofs] == ["a large copy", "a large product (float32, BLAS)"]
    together = rows[10]["rows"]
    products = ["norm", "queries, keys, values", "output", "gate and up", "down"]
    assert [(one["what"], one["rows"]) for one in rows] == [
        *((what, count) for count in (1, 8, together) for what in products),
        *((what, count) for count in (1, 8) for what in ["logits", *drawn]),
        *(("attention", count) for count in (1, 8, together)),
    ]
    for one in found:
        assert len(one["samples"]) == 2
        assert min(one["samples"]) <= one["us"] <= max(one["samples"])
    assert all(note in out for note in report["notes"])
    assert bool(report["notes"]) is any(round(one["of_roof"], 1) > 100 for one in rows)
    most = {"memory": roofs[0]["gb_per_s"], "arithmetic": roofs[1]["gflop_per_s"]}
    for one in rows:
        of = {"memory": one["gb_per_s"], "arithmetic": one["gflop_per_s"]}
        assert one["of_roof"] == pytest.approx(100 * max(of[bound] / most[bound] for bound in most))
        assert of[one["bound"]] / most[one["bound"]] == pytest.approx(one["of_roof"] / 100)
    products_of_8 = [one for one in rows if one["rows"] == 8 and one["what"] in products[1:]]
    for one in products_of_8:
        # Four bytes and sixteen sums a weight.
        assert one["gflop_per_s"] == pytest.approx(4 * one["gb_per_s"])


class Scripted:
    """A roof that takes as long as is said: a copy of 1,000 bytes a second, products of 100 sums one."""

    def __init__(self, *products: str) -> None:
        self.products = products

    def copy(self) -> int:
        return 1000

    def multiply(self, together: bool) -> tuple[str, int]:
        if not self.products:
            raise DeviceMissing("there is no library")
        return self.products[together], 200 if self.products[together] == "half" else 100


def seconds(do: Callable[[int], object]) -> list[float]:
    """The best counts."""
    do(0)
    return [2.0, 1.0, 4.0]


def test_an_operation_is_held_against_what_it_needs_most_of() -> None:
    """Rows that are read together are multiplied in other numbers than those that come alone."""
    roofs = Roofs(Scripted("single", "half"))
    told = list(roofs.measure(seconds))
    assert [(one["what"], one["gb_per_s"], one["gflop_per_s"]) for one in told] == [
        ("a large copy", 1000 / 1e9, None),
        ("a large product (single)", None, 100 / 1e9),
        ("a large product (half)", None, 200 / 1e9),
    ]
    assert roofs.bound(500, 40, together=False) == ("memory", 0.5)
    assert roofs.bound(500, 80, together=False) == ("arithmetic", 0.8)
    assert roofs.bound(500, 80, together=True) == ("memory", 0.5)


def test_products_of_one_kind_are_measured_once() -> None:
    roofs = Roofs(Scripted("single", "single"))
    assert len(list(roofs.measure(seconds))) == 2
    assert roofs.bound(0, 100, together=True) == roofs.bound(0, 100, together=False) == ("arithmetic", 1.0)


def test_where_no_product_is_a_roof_there_is_that_of_memory_and_it_is_said() -> None:
    roofs = Roofs(Scripted())
    assert [one["what"] for one in roofs.measure(seconds)] == ["a large copy"]
    assert roofs.bound(500, 10**9, together=True) == ("memory", 0.5)
    assert roofs.left_out == ["a large product, so shares are of the memory's roof alone: there is no library"]


def test_shares_above_a_hundred_are_explained_by_what_bounds_them() -> None:
    shares = [("memory", 100.0), ("arithmetic", 99.0), ("memory", 120.0), ("arithmetic", 101.0)]
    rows = [{"bound": bound, "of_roof": share} for bound, share in shares]
    cached, faster = "what is read was in a cache, or reading alone is faster than copying", "sums are done faster"
    assert above(rows[:2]) == ()
    assert above(rows[:3]) == (f"above 100 % of the roof: {cached} (memory)",)
    (both,) = above(rows)
    assert both.startswith(f"above 100 % of the roof: {cached} (memory); {faster}")


def test_what_is_left_is_as_far_off_as_what_was_done() -> None:
    assert left_s([1.0, 2.0, 3.0], 0, 0.0) == 6.0
    assert left_s([1.0, 2.0, 3.0], 2, 6.0) == 6.0
    assert left_s([1.0], 1, 5.0) == 0.0


async def test_a_short_request_is_timed_alone_and_behind_long_ones(tiny_model_path: Path) -> None:
    report = await contention(tiny_model_path, Settings.of(threads=1), 2, nothing)
    alone, read, answer = report.rows
    assert (alone["over_alone"], alone["rounds"], len(alone["samples"])) == (1.0, 2, 2)
    for one in (read, answer):
        assert one["rounds"] == len(one["samples"]) <= 2
        assert one["ttft_s"] is None or 0 < one["ttft_s"] <= one["worst_s"]


async def test_rows_are_decoded_once_each_all_along_a_prompt_that_is_read(tmp_path: Path) -> None:
    deep = write_tiny_model(tmp_path / "deep.gguf", layers=16)
    report = await newer_step(deep, Settings.of(threads=1, chunk_tokens=128), 2, nothing)
    alone, reading, slices = report.rows
    assert alone["times"] == 2 * TURNS
    assert 0 < reading["times"] <= 2 * TURNS
    assert reading["times"] <= slices["times"]
    for one in report.rows:
        assert len(one["samples"]) == one["times"]
        assert 0 < one["p50_ms"] <= one["worst_ms"]


async def test_without_pages_for_rows_beside_a_prompt_nothing_is_found(tiny_model_path: Path) -> None:
    report = await newer_step(tiny_model_path, Settings.of(threads=1, page_tokens=1024, kv_mib=1), 1, nothing)
    assert [one["times"] for one in report.rows] == [0, 0, 0]


async def test_an_engine_that_can_not_be_built_is_the_error_that_says_why(tiny_model_path: Path) -> None:
    with pytest.raises(ConfigError, match="more than the 2048 that the model was trained for"):
        await newer_step(tiny_model_path, Settings.of(threads=1, context=4096), 1, nothing)


@pytest.mark.parametrize("fact", [EngineDied("it fell over"), SeqFailed(Seq(1), "it fell over")])
async def test_an_engine_that_says_no_more_is_not_waited_for(fact: FromEngine) -> None:
    with Talk(ThreadHost(lambda: None)) as talk:
        talk.hear(fact)
        with pytest.raises(EngineUnavailable, match="it fell over"):
            await talk.until(lambda _: False)


async def test_the_engines_time_and_the_walls_are_told_for_each_thing_that_it_does(tiny_model_path: Path) -> None:
    report = await overhead(tiny_model_path, Settings.of(threads=1), 1, nothing)
    assert [one["arm"] for one in report.rows] == ["reads", "decodes, 1 at once", "decodes, 8 at once"]
    for one in report.rows:
        assert one["steps"] > 1
        assert 0 < one["p50_ms"] <= one["p99_ms"]
        assert one["engine_ms"] > 0


def test_overhead_is_what_the_wall_has_more_than_the_engine() -> None:
    """The first slice began before it was heard of, so it counts in neither."""
    run = [Heard(10.0, 0.7, True), Heard(11.1, 1.0, True), Heard(12.2, 1.0, True)]
    found: Any = row("reads", [run])
    assert found["overhead_percent"] == pytest.approx(10.0)
    assert (found["engine_ms"], found["wall_ms"]) == (pytest.approx(1000.0), pytest.approx(1100.0))
    assert (found["steps"], found["p50_ms"], found["p99_ms"]) == (3, 1000.0, 1000.0)
    assert row("reads", [])["overhead_percent"] is None


def test_what_can_not_be_written_or_drawn_is_refused_and_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_model_path: Path
) -> None:
    model = ("--model", str(tiny_model_path), "--threads", "1", "--repeats", "1")
    code, _, err = run(capsys, "throughput", *model, "--json", str(tmp_path / "no" / "x.json"))
    assert (code, "json" in err) == (2, True)
    picture = tmp_path / "x.png"
    code, out, err = run(capsys, "throughput", *model, "--plot", str(picture))
    if can_plot():
        assert picture.read_bytes().startswith(b"\x89PNG")
    else:
        assert (code, out) == (2, "")
        assert "pip install matplotlib" in err


@pytest.mark.parametrize("arm", ["contention", "overhead", "newer-step"])
def test_a_model_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str], arm: str) -> None:
    code, _, err = run(capsys, arm, "--model", "none.gguf")
    assert (code, "none.gguf" in err) == (2, True)


def test_each_prints_a_table_and_says_meanwhile_where_it_is(
    capsys: pytest.CaptureFixture[str], tiny_model_path: Path
) -> None:
    model = ("--model", str(tiny_model_path), "--threads", "1", "--repeats", "1")
    for arm, said, column in (
        ("contention", "round 1 of 1", "times alone"),
        ("overhead", "round 1 of 1", "runtime (%)"),
        ("newer-step", "prompt 1 of 1", "worst (ms)"),
    ):
        code, out, err = run(capsys, arm, *model)
        assert (code, said in err) == (0, True)
        assert column in out


@pytest.mark.parametrize("command", ["contention", "overhead", "newer-step"])
def test_a_context_that_is_too_small_to_measure_in_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str], tiny_model_path: Path, command: str
) -> None:
    code, _, said = run(capsys, command, "--model", str(tiny_model_path), "--context", "64", "--repeats", "1")
    assert code == 2
    assert "context: it is too small for what is measured" in said
    assert "Traceback" not in said
