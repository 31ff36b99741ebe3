"""A trace has a line for each slice and each decoded row, and two traces differ where the runs did."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from drive import CHUNK, GREEDY, Drive, prompt
from toy_model import LAYERS, ToyModel

from strata.engine.trace import Trace, diff
from strata.messages import Close, Seq

ONE, TWO = Seq(1), Seq(2)


@pytest.fixture
def traces() -> Iterator[Callable[..., Drive]]:
    """Makes engines that write traces, and closes them."""
    with ExitStack() as stack:

        def make(path: Path, model: ToyModel | None = None) -> Drive:
            drive = Drive(model, trace=Trace(path))
            stack.callback(drive.engine.close)
            return drive

        yield make


def run_two(drive: Drive, *, parked: bool = False) -> Drive:
    """Two sequences; the first is read whole before the second comes, or is parked for it in the midst of a chunk."""
    drive.open(ONE, prompt(1, CHUNK + 10))
    drive.open(TWO, prompt(2, 10))
    drive.step(read=ONE)
    if parked:
        drive.advance()
    else:
        drive.run()
    drive.step(read=TWO)
    drive.run()
    drive.step(read=ONE)
    drive.run()
    return drive


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_trace_has_a_line_for_each_slice_and_each_decoded_row(tmp_path, traces):
    drive = run_two(traces(tmp_path / "a"))
    written = [line for line in lines(tmp_path / "a") if line["seq"] == 1]
    slices, steps = written[: 2 * LAYERS], written[2 * LAYERS :]
    assert [(line["what"], line["chunk"], line["slice"], line["position"]) for line in slices] == [
        *(("slice", 0, done, CHUNK if done == LAYERS else 0) for done in range(1, LAYERS + 1)),
        *(("slice", 1, done, CHUNK + 10 if done == LAYERS else CHUNK) for done in range(1, LAYERS + 1)),
    ]
    assert [(line["what"], line["position"]) for line in steps] == [("decode", CHUNK + 10 + n) for n in range(1, 8)]
    assert [line["token"] for line in written if "token" in line] == drive.tokens(ONE)
    assert all(set(line["state"]) == {"tokens", "position", "sampler", "chunk", "kv"} for line in written)


def test_lines_are_whole_in_the_file_as_soon_as_they_are_written(tmp_path, traces):
    drive = traces(tmp_path / "a")
    drive.open(ONE, prompt(1, 10))
    drive.step(read=ONE)
    drive.advance()
    assert len(lines(tmp_path / "a")) == 1


def test_another_interleaving_is_no_difference(tmp_path, traces):
    run_two(traces(tmp_path / "a"))
    run_two(traces(tmp_path / "b"), parked=True)
    assert lines(tmp_path / "a") != lines(tmp_path / "b")
    assert diff(tmp_path / "a", tmp_path / "b") is None


def test_a_part_of_the_state_that_differs_is_named_at_its_first_line(tmp_path, traces):
    class Forgetful(ToyModel):
        """One bit of what it keeps is lost between two slices."""

        def decode(self, rows):
            logits = super().decode(rows)
            if any(row.position == CHUNK + 12 for row in rows):
                self._kv[self._place(rows[0].handle, 5)] ^= 1
            return logits

    run_two(traces(tmp_path / "a"))
    run_two(traces(tmp_path / "b", Forgetful()))
    first = 2 * LAYERS + 3
    assert diff(tmp_path / "a", tmp_path / "b") == (
        f"sequence 1: A line {first} (decode, position {CHUNK + 13}), B line {first} (decode, position {CHUNK + 13}): "
        "kv of the state differs"
    )


def test_a_missing_tail_is_a_difference(tmp_path, traces):
    drive = traces(tmp_path / "a")
    drive.open(ONE, prompt(1, 10))
    drive.step(read=ONE)
    drive.until_written(ONE, 3)
    drive.tell(Close(ONE))
    other = traces(tmp_path / "b")
    other.open(ONE, prompt(1, 10))
    other.step(read=ONE)
    other.run()
    expected = f"at line {LAYERS + 3} (decode, position 13)"
    assert diff(tmp_path / "a", tmp_path / "b") == f"sequence 1: only B goes on, {expected}"
    assert diff(tmp_path / "b", tmp_path / "a") == f"sequence 1: only A goes on, {expected}"


def test_another_prompt_differs_from_its_first_slice_on(tmp_path, traces):
    for name, seq in (("a", 1), ("b", 2)):
        drive = traces(tmp_path / name)
        drive.open(ONE, prompt(seq, 10))
        drive.step(read=ONE)
        drive.run()
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found is not None
    assert found.endswith("B line 1 (slice 1 of chunk 0, position 0): tokens of the state differs")


def test_the_first_of_several_differences_is_named(tmp_path, traces):
    for name, length in (("a", 10), ("b", 11)):
        drive = traces(tmp_path / name)
        for seq in (TWO, ONE):
            drive.open(seq, prompt(seq, length), GREEDY)
            drive.step(read=seq)
            drive.run()
    assert (diff(tmp_path / "a", tmp_path / "b") or "").startswith("sequence 2: A line 1 ")


@pytest.mark.parametrize("text", ["no json\n", "[1]\n", "3\n", '{"seq": 1}\n'])
def test_a_file_that_is_no_trace_is_refused_by_its_line(tmp_path, text):
    (tmp_path / "a").write_text(text)
    with pytest.raises(ValueError, match="line 1 "):
        diff(tmp_path / "a", tmp_path / "a")


@pytest.mark.parametrize("cut", [False, True])
def test_what_another_engine_goes_on_with_follows_and_what_it_began_anew_counts(tmp_path, traces, cut):
    """The first dies while it decodes one, the second replays that and reads another."""
    calm, first = run_two(traces(tmp_path / "a")), traces(tmp_path / "b")
    first.open(ONE, prompt(1, CHUNK + 10))
    first.step(read=ONE)
    first.until_written(ONE, 3)
    first.engine.close()
    if cut:
        with (tmp_path / "b").open("a") as file:
            file.write('{"seq":1,"what":"dec')
    before = (tmp_path / "b").read_text()
    second = Drive(trace=Trace(tmp_path / "b", goes_on=True))
    written = tuple(calm.tokens(ONE)[:3])
    second.open(ONE, prompt(1, CHUNK + 10), written=written)
    second.open(TWO, prompt(2, 10))
    for seq in (ONE, TWO):
        second.step(read=seq)
        second.run()
    second.engine.close()
    assert (tmp_path / "b").read_text().startswith(before)
    assert diff(tmp_path / "a", tmp_path / "b") is None
    lines_of_b = (tmp_path / "b").read_text().splitlines()
    lines_of_b[-1] = lines_of_b[-1].replace('"position":', '"position":1', 1)
    (tmp_path / "b").write_text("\n".join(lines_of_b))
    assert f"B line {len(lines_of_b)} " in (diff(tmp_path / "a", tmp_path / "b") or "")


def test_two_empty_traces_are_the_same(tmp_path):
    (tmp_path / "a").touch()
    assert diff(tmp_path / "a", tmp_path / "a") is None
