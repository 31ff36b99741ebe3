"""`strata serve --device cuda` over real sockets, on a tiny model and an emulated card."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import fakes
import pytest
from served import RawChat, Server, Stream, run, served, until

from strata.testing.tiny_model import write_tiny_model

LONG = "river stone market signal garden copper winter engine letter bridge harbor meadow " * 8
FLAGS = ("--chunk-tokens", "64", "--page-tokens", "16", "--max-priority", "10")


@pytest.fixture(autouse=True, scope="module")
def emulated(fake_folder: Path) -> Iterator[None]:
    """Processes that are started find the emulated driver."""
    with pytest.MonkeyPatch.context() as environ:
        for name, value in fakes.environ(fake_folder).items():
            environ.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def server(tiny_model_path: Path) -> Iterator[Server]:
    with served("--model", tiny_model_path, "--device", "cuda", "--policy", "preempt", *FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def on_the_processor(tiny_model_path: Path) -> Iterator[Server]:
    with served("--model", tiny_model_path, *FLAGS) as server:
        yield server


def test_it_says_how_many_tokens_there_is_room_for(server: Server) -> None:
    """As many as can be used: `preempt` runs one at a time, and the model was trained for 2,048."""
    assert any(line.startswith("  on cuda, 128 pages of 16 tokens: room for 2,048") for line in server.said)


def reading(server: Server) -> str:
    found = until(lambda: [n for n, a in server.requests().items() if a["state"] == "reading"], "it reads")
    return str(found[0])


def test_an_answer_is_that_of_the_processor(server: Server, on_the_processor: Server) -> None:
    for text in ("Hello", LONG):
        asked = {"max_tokens": 12, "ignore_eos": True}
        assert Stream(server, text, **asked).whole() == Stream(on_the_processor, text, **asked).whole()


def test_a_read_that_is_parked_goes_on_as_if_nothing_had_happened(server: Server) -> None:
    """B02: a more urgent request comes, and both answers are those that come alone."""
    asked = {"max_tokens": 6, "ignore_eos": True}
    text = LONG[::-1] * 2  # nobody has read it before, so no page of it is cached
    long = Stream(server, text, **asked)
    name = reading(server)
    urgent = Stream(server, "Hello", **asked, priority=5).whole()
    parked = long.whole()
    assert (parked, urgent) == (Stream(server, text, **asked).whole(), Stream(server, "Hello", **asked).whole())
    states = [change["state"] for change in server.actor(name)["history"]]
    assert "parked (reading)" in states


def traced(model: Path, trace: Path, *, disturbed: bool) -> None:
    """A long read and six short chats that are more urgent; `disturbed`: these while the long one reads."""
    with served("--model", model, "--device", "cuda", "--policy", "preempt", *FLAGS, "--trace", trace) as server:
        long = Stream(server, LONG, max_tokens=4, ignore_eos=True, seed=1)
        reading(server)
        if not disturbed:
            long.whole()
        for number in range(6):
            Stream(server, f"Request {number}", max_tokens=2, ignore_eos=True, priority=5, seed=number).whole()
        long.whole()


def given_way(trace: Path) -> list[bool]:
    """Each time that something else was done between two slices of the first sequence: whether within a chunk."""
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    read = [(at, line["chunk"]) for at, line in enumerate(lines) if (line["seq"], line["what"]) == (1, "slice")]
    return [one == other for (at, one), (later, other) in pairwise(read) if at + 1 < later]


def test_two_runs_that_gave_way_differently_leave_the_same_trace(tmp_path: Path) -> None:
    """B05: keys, values and tokens of each sequence, slice by slice."""
    deep = write_tiny_model(tmp_path / "deep.gguf", layers=4)
    calm, busy = tmp_path / "calm", tmp_path / "busy"
    traced(deep, calm, disturbed=False)
    traced(deep, busy, disturbed=True)
    assert not given_way(calm)
    times = given_way(busy)
    assert len(times) > 2
    assert any(times)
    same = run("trace", "diff", calm, busy)
    assert (same.returncode, same.stdout) == (0, "the same\n")


def test_pages_that_were_moved_to_the_arena_and_back_are_what_they_were(tmp_path: Path) -> None:
    """An answer that is being written makes room for a more urgent one: both are those that come alone."""
    wide = write_tiny_model(tmp_path / "wide.gguf", kv_heads=4, head_dim=64)
    memory = ("--kv-mib", "1", "--arena-mib", "1", "--no-prefix-cache")
    with served("--model", wide, "--device", "cuda", "--policy", "preempt", *FLAGS, *memory) as server:
        assert any(line.startswith("  on cuda, 16 pages of 16 tokens: room for 256") for line in server.said)
        long = {"content": LONG[:170], "max_tokens": 60, "ignore_eos": True}
        urgent = {"content": LONG[200:340], "max_tokens": 8, "ignore_eos": True, "priority": 5}
        parked = Stream(server, **long)
        parked.began.wait()
        answers = Stream(server, **urgent).whole(), parked.whole()
        moved = [server.figure("strata_pages_moved_total", to=way) for way in ("out", "in")]
        assert moved[0] == moved[1] > 2
        assert answers == (Stream(server, **urgent).whole(), Stream(server, **long).whole())
        assert [server.figure("strata_pages_moved_total", to=way) for way in ("out", "in")] == moved


def test_a_client_that_leaves_is_forgotten(server: Server) -> None:
    """B21, B23: while it is read, and while its answer is written."""
    client = RawChat(server, LONG, stream=True, max_tokens=6)
    name = reading(server)
    client.reset()
    until(lambda: name not in server.requests(), f"{name} is gone")
    client = RawChat(server, "Count.", stream=True, max_tokens=1500, ignore_eos=True)
    client.read_until(b'"content":"')
    client.reset()
    until(lambda: not server.requests() and server.figure("strata_pages", state="held") == 0, "nothing is left")


@pytest.fixture
def fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that makes the card fail with the error whose number is in it."""
    monkeypatch.setenv("FAKECUDA_FAULT", str(tmp_path / "fault"))
    return tmp_path / "fault"


def test_a_fault_of_the_card_ends_its_process_and_another_serves_on(tiny_model_path: Path, fault: Path) -> None:
    """B35, B36: a sticky error poisons the process that had it, and no other."""
    with served("--model", tiny_model_path, "--device", "cuda", *FLAGS) as server:
        asked = {"max_tokens": 4, "ignore_eos": True}
        before = Stream(server, "Hello", **asked).whole()
        doomed = Stream(server, LONG, max_tokens=100, ignore_eos=True)
        reading(server)
        fault.write_text("719")
        doomed.join()
        fault.unlink()
        assert doomed.error["type"] == "engine_unavailable"
        until(lambda: server.get("/ready")[0] == 200, "another engine is there")
        assert Stream(server, "Hello", **asked).whole() == before


def test_a_card_without_memory_in_the_middle_is_told_to_every_client(tiny_model_path: Path, fault: Path) -> None:
    """B35, B56: an error event or 503 for all, and exit code 3 where no other engine is wanted."""
    with served(
        "--model", tiny_model_path, "--device", "cuda", "--policy", "fifo", "--restart-limit", "0", *FLAGS
    ) as server:
        streams = [Stream(server, LONG, max_tokens=100, ignore_eos=True) for _ in range(3)]
        reading(server)
        fault.write_text("2")
        for stream in streams:
            stream.join()
            assert stream.error["type"] == "engine_unavailable"
            assert not stream.done
        assert server.process.wait(30) == 3
        assert any("OutOfDeviceMemory" in line for line in server.said)


SIXTEEN = ("--device", "cuda", "--activations", "f16")


def test_what_is_read_by_cublas_is_answered_alike_with_and_without_a_cached_beginning(tiny_model_path: Path) -> None:
    """B54: the second time most of the prompt is there already; the start says what is used."""
    with served("--model", tiny_model_path, *SIXTEEN, "--products", "cublas", *FLAGS) as server:
        assert any("cuBLAS 13.9 multiplies what is read, with 112.2 MiB" in line for line in server.said)
        answers = {Stream(server, LONG, max_tokens=8, ignore_eos=True).whole() for _ in range(2)}
        assert len(answers) == 1
        assert server.figure("vllm:prefix_cache_hits_total") > 0


def test_a_library_that_is_asked_for_and_does_not_fit_refuses_the_start_in_one_line(tiny_model_path: Path) -> None:
    refused = run(
        *("serve", "--port", "0", "--model", tiny_model_path, *SIXTEEN, "--products", "cublas"),
        environ={"FAKECUBLAS_VERSION": "1109"},
    )
    assert refused.returncode == 2
    assert "cuBLAS 11.9 is too old, 12.0 is needed: `pip install '.[cublas]'` in the project's folder" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_doctor_says_which_card_there_is_and_what_it_has() -> None:
    done = run("doctor", "--device", "cuda")
    assert "emulated, sm_90, 1,024 MiB free" in done.stdout
    assert "CUDA 13.9" in done.stdout
    assert "cuBLAS 13.9" in done.stdout


def test_doctor_says_how_to_get_cublas_where_it_is_asked_for_and_does_not_fit() -> None:
    said = "cuBLAS 11.9 is too old, 12.0 is needed: `pip install '.[cublas]'`"
    for products, mend in (("auto", f"not usable: {said}"), ("cublas", f"-> {said}")):
        done = run("doctor", *SIXTEEN, "--products", products, environ={"FAKECUBLAS_VERSION": "1109"})
        assert mend in done.stdout


def test_doctor_says_that_a_card_has_not_the_numbers_that_are_asked_for() -> None:
    """As the start would; and what a processor computes in isn't said to be that of the device."""
    older = {"FAKECUDA_CAPABILITY": "75"}
    done = run("doctor", "--device", "cuda", "--activations", "bf16", environ=older)
    assert "-> emulated (sm_75) has no bf16: choose f16 or f32" in done.stdout
    assert "device               cpu" not in done.stdout
    assert "no bf16" not in run("doctor", *SIXTEEN, environ=older).stdout


def test_doctor_says_what_is_missing_where_a_card_is_asked_for() -> None:
    nothing = {"LD_LIBRARY_PATH": ""}
    done = run("doctor", "--device", "cuda", environ=nothing)
    assert "libcuda.so.1 comes with NVIDIA's driver" in done.stdout
    assert done.returncode == 1
    unasked = run("doctor", environ=nothing).stdout
    assert "libcuda.so.1 comes with" in unasked
    assert "-> PyCUDA" not in unasked


def test_without_a_card_the_server_refuses_the_start_in_one_line(tiny_model_path: Path) -> None:
    refused = run(
        "serve", "--port", "0", "--model", tiny_model_path, "--device", "cuda", environ={"LD_LIBRARY_PATH": ""}
    )
    assert refused.returncode == 2
    assert "libcuda.so.1 comes with NVIDIA's driver" in refused.stderr
    assert "Traceback" not in refused.stderr
