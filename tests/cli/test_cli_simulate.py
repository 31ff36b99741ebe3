"""`strata simulate`: traffic in, a table out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata.cli import main
from strata.cli.simulate import KINDS, run_all
from strata.config import Settings
from strata.simulate import generate, laptop, read_cost, read_trace, traffic, write_cost
from strata.simulate.plot import can_plot


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit code and what was printed."""
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


MADE = ("--generate", "mixed", "--requests", "30", "--per-s", "1", "--seed", "2")


def test_made_up_traffic_is_written_and_a_trace_gives_the_same_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    assert run(capsys, *MADE, "--write", str(path))[0] == 0
    assert len(read_trace(path)) == 30
    one = run(capsys, *MADE, "--policy", "batch")
    other = run(capsys, str(path), "--policy", "batch")
    assert one == other
    assert one[0] == 0
    assert "first token (s)" in one[1]
    assert max(len(line) for line in one[1].splitlines()) <= 100


def test_every_policy_is_compared_and_all_figures_are_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "figures.json"
    code, out, _ = run(capsys, *MADE, "--policy", "batch", "--policy", "fifo", "--json", str(path))
    assert code == 0
    lines = [line.split()[:2] for line in out.splitlines()]
    assert ["batch", "short"] in lines
    assert ["fifo", "long"] in lines
    whole = json.loads(path.read_text())
    assert [one["policy"] for one in whole["policies"]] == ["batch", "fifo"]
    assert whole["settings"]["fifo"]["max_running"] == 1
    assert whole["policies"][0]["rows"][0]["ttft_s"]["p99"] > 0


def test_a_setting_and_a_cost_model_change_what_comes_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plain = run(capsys, *MADE, "--policy", "batch")[1]
    assert run(capsys, *MADE, "--policy", "batch", "--max-running", "2")[1] != plain
    write_cost(tmp_path / "cost.json", laptop())
    assert run(capsys, *MADE, "--policy", "batch", "--model-cost", str(tmp_path / "cost.json"))[1] == plain


def test_all_kinds_of_traffic_can_be_asked_for() -> None:
    assert set(KINDS) == set(traffic.KINDS)


def test_processes_of_their_own_give_the_same_runs() -> None:
    made = generate("mixed", 40, seed=1, per_s=1.0)
    chosen = {policy: Settings.of(policy=policy) for policy in ("fifo", "batch")}
    one, other = (run_all(made, chosen, laptop(), None, side_by_side=aside) for aside in (False, True))
    assert [outcome[0] for outcome in one] == [outcome[0] for outcome in other]
    assert [outcome[1].total_s for outcome in one] == [outcome[1].total_s for outcome in other]


def test_how_much_the_prefix_cache_knew_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    line = '{{"timestamp": {}, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}}\n'
    path.write_text(line.format(1) + line.format(90_000))
    said = run(capsys, str(path), "--policy", "fifo")[1]
    assert "tokens read: 624, cached: 576" in " ".join(said.split())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--generate"),
        (("none.jsonl",), "none.jsonl"),
        (("t.jsonl", "--generate", "chat"), "--generate"),
        ((*MADE, "--policy", "fastest"), "--policy"),
        ((*MADE, "--model-cost", "none.json"), "none.json"),
        (("--calibrate", "m.gguf"), "--out"),
        ((*MADE, "--order-share", "2"), "order_share"),
    ],
)
def test_what_can_not_be_is_refused_and_named(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], named: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert named in err
    assert "Traceback" not in err


def test_a_bad_line_is_refused_by_its_number(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"timestamp": 1, "input_length": 3, "output_length": 2}\n{}\n')
    code, _, err = run(capsys, str(tmp_path / "t.jsonl"))
    assert code == 2
    assert "line 2" in err


def test_a_picture_is_drawn_or_one_line_says_how_to_get_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    code, out, err = run(capsys, *MADE, "--policy", "batch", "--plot", str(path))
    if can_plot():
        assert code == 0
        assert path.read_bytes().startswith(b"\x89PNG")
    else:
        assert (code, out) == (2, "")
        assert "pip install matplotlib" in err


def test_a_model_is_timed_and_its_costs_can_be_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_model_path: Path
) -> None:
    out = tmp_path / "cost.json"
    code, said, err = run(capsys, "--calibrate", str(tiny_model_path), "--out", str(out))
    assert (code, err) == (0, "")
    assert "512 tokens are read in" in said
    cost = read_cost(out)
    assert cost.layers >= 1
    assert run(capsys, *MADE, "--policy", "batch", "--model-cost", str(out))[0] == 0
