"""Starting, refusing to start, and ending: what the process says and its exit code."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from termios import TIOCSCTTY

import pytest
from served import RawChat, RawClient, Server, Stream, chat_body, children, run, served, strata, until

LONG = "river stone market signal garden copper winter engine letter bridge harbor meadow " * 30


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """The one line that a start ended with."""
    assert result.returncode == 2, result
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("strata: ")
    return lines[0]


def test_a_model_file_that_can_not_be_served_refuses_the_start_in_one_line(
    tiny_model_path: Path, tmp_path: Path
) -> None:
    """B37: missing, cut short, of another kind, a folder, empty."""
    whole = tiny_model_path.read_bytes()
    files = {"short.gguf": whole[:-1000], "text.gguf": b"hello " * 100, "empty.gguf": b"", "head.gguf": whole[:40]}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        assert name in refused(run("serve", "--port", "0", "--model", tmp_path / name))
    assert "nowhere.gguf" in refused(run("serve", "--port", "0", "--model", tmp_path / "nowhere.gguf"))
    assert str(tmp_path) in refused(run("serve", "--port", "0", "--model", tmp_path))


def test_a_port_in_use_refuses_the_start_in_one_line(tiny_model_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        # As its advice says: by the variable, and by the flag.
        said = {
            refused(run("serve", *flags, "--model", tiny_model_path, environ=environ))
            for flags, environ in (((), {"STRATA_PORT": port}), (("--port", port), {}))
        }
    assert len(said) == 1
    assert port in said.pop()


@pytest.mark.parametrize(
    ("flag", "value"), [("order-share", "1"), ("max-running", "0"), ("chunk-tokens", "3"), ("read-share", "nan")]
)
def test_a_bad_setting_refuses_the_start_and_names_itself(tiny_model_path: Path, flag: str, value: str) -> None:
    said = refused(run("serve", "--port", "0", "--model", tiny_model_path, f"--{flag}", value))
    assert flag.replace("-", "_") in said


def test_a_public_address_without_a_key_refuses_the_start(tiny_model_path: Path) -> None:
    assert "--insecure" in refused(run("serve", "--host", "0.0.0.0", "--port", "0", "--model", tiny_model_path))


def test_the_line_that_it_prints_can_be_pasted(tiny_model_path: Path) -> None:
    with served("--model", tiny_model_path) as server:
        until(lambda: any(line.startswith("curl ") for line in server.said), "the line is printed")
        (line,) = [line for line in server.said if line.startswith("curl ")]
        result = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=60, check=True)
        assert "data: [DONE]" in result.stdout


def test_where_a_key_is_needed_the_line_takes_it_from_the_shell_and_shows_it_to_nobody(tiny_model_path: Path) -> None:
    """B64: what is printed may be logged."""
    with served("--model", tiny_model_path, "--api-key", "sesame") as server:
        until(lambda: any(line.startswith("curl ") for line in server.said), "the line is printed")
        (line,) = [line for line in server.said if line.startswith("curl ")]
        environ = {**os.environ, "API_KEY": "sesame"}
        result = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=True, env=environ)
        assert "data: [DONE]" in result.stdout
        assert "sesame" not in "".join(server.said)


def ready_at(path: Path) -> bool:
    """Whether a server answers at this socket file."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        client.sendall(b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n")
        return client.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("where", ["a closed pipe", "a full disk"])
def test_a_server_that_can_say_nothing_serves_and_ends_as_ever(
    tiny_model_path: Path, tmp_path: Path, where: str
) -> None:
    """B65: neither its first words nor its log lines are worth a request, nor another exit code."""
    if where == "a closed pipe":
        read_end, output = os.pipe()
        os.close(read_end)
    else:
        output = os.open("/dev/full", os.O_WRONLY)
    path = tmp_path / "s"
    command = strata("serve", "--host", f"unix:{path}", "--model", tiny_model_path)
    process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        os.close(output)
        until(lambda: process.poll() is not None or ready_at(path), "it is up")
        # The first request is logged by now.
        assert ready_at(path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("policy", ["fifo", "preempt", "batch"])
def test_every_policy_serves(tiny_model_path: Path, policy: str) -> None:
    with served("--model", tiny_model_path, "--policy", policy) as server:
        streams = [Stream(server, f"request {i}", max_tokens=8, ignore_eos=True) for i in range(4)]
        for stream in streams:
            stream.whole()
            assert stream.usage["completion_tokens"] == 8


def assert_told_to_come_back(client: RawClient) -> None:
    answer = client.read_until(b"}}").lower()
    client.close()
    assert answer.startswith(b"http/1.1 503")
    assert b"retry-after: " in answer
    assert b'"type":"shutting_down"' in answer


def test_told_to_stop_it_ends_what_has_started_and_itself(default_model_path: Path) -> None:
    """B40: not ready at once, the running one finishes, queued ones get 503, exit code 0."""
    with served("--model", default_model_path, "--policy", "fifo") as server:
        running = Stream(server, "Count.", max_tokens=40, ignore_eos=True)
        running.began.wait()
        # It doesn't stream, so its status is still open.
        waiting = RawChat(server, "Wait.", max_tokens=4)
        until(lambda: len(server.requests()) == 2, "the second one is queued")
        server.process.send_signal(signal.SIGTERM)
        assert_told_to_come_back(waiting)
        assert server.get("/ready")[0] == 503
        assert_told_to_come_back(RawChat(server, "And me?", max_tokens=4))
        running.whole()
        assert running.usage["completion_tokens"] == 40
        assert server.process.wait(30) == 0


def test_what_has_not_ended_by_the_deadline_ends_with_an_error_event(default_model_path: Path) -> None:
    """B40: an error event, never a cut line; an upload gets 503.  There is one deadline for both, not one after the
    other."""
    with served("--model", default_model_path, "--drain-timeout-s", "4") as server:
        running = Stream(server, "Count.", max_tokens=8000, ignore_eos=True)
        upload = RawClient(server)
        upload.post(b"{", length=1000)
        running.began.wait()
        told = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        running.join()
        assert running.error["type"] == "shutting_down"
        assert not running.done
        assert_told_to_come_back(upload)
        assert server.process.wait(30) == 0
        assert 4 <= time.monotonic() - told < 7.5


def engine_of(process: subprocess.Popen[str]) -> int | None:
    """The process that it has started for its engine; libraries start others."""
    for pid in children(process.pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            if b"strata.engine.child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_while_it_loads_it_ends_at_once_and_in_order(tiny_model_path: Path, told: signal.Signals) -> None:
    """B40: exit code 0, and no process stays, though what loads the model never ends."""
    command = strata("serve", "--port", "0", "--engine-host", "process", "--model", tiny_model_path)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    loads = until(lambda: engine_of(process), "it has begun to load")
    os.kill(loads, signal.SIGSTOP)
    process.send_signal(told)
    output, said = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "")
    assert said == "strata: told to stop before the model was loaded\n"
    assert not Path(f"/proc/{loads}").exists()


def asked_at(path: Path, line: str) -> bytes:
    """What a server answers at this socket file, the head at least."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(path))
        client.sendall(f"{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_it_answers_while_it_loads_and_takes_requests_as_soon_as_it_has(tiny_model_path: Path, tmp_path: Path) -> None:
    """B61: alive from the first moment, ready when the model is there."""
    path = tmp_path / "s"
    command = strata("serve", "--host", f"unix:{path}", "--engine-host", "process", "--model", tiny_model_path)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        loads = until(lambda: engine_of(process), "it has begun to load")
        os.kill(loads, signal.SIGSTOP)
        try:
            assert asked_at(path, "GET /health").startswith(b"HTTP/1.1 200")
            ready = asked_at(path, "GET /ready")
            assert ready.startswith(b"HTTP/1.1 503")
            assert b'"state":"loading"' in ready
            models = asked_at(path, "GET /v1/models").lower()
            assert models.startswith(b"http/1.1 503")
            assert b"retry-after: " in models
        finally:
            os.kill(loads, signal.SIGCONT)
        until(lambda: ready_at(path), "it is up")
        assert asked_at(path, "GET /v1/models").startswith(b"HTTP/1.1 200")
        process.terminate()
        assert process.wait(60) == 0


def test_an_engine_that_is_killed_while_it_loads_is_no_wrong_setting(tiny_model_path: Path) -> None:
    """B37: the system may have had no memory at that moment; a service manager is to start it again, which it must not
    where it was asked for what can't be."""
    command = strata("serve", "--port", "0", "--engine-host", "process", "--model", tiny_model_path)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    loads = until(lambda: engine_of(process), "it has begun to load")
    os.kill(loads, signal.SIGSTOP)
    os.kill(loads, signal.SIGKILL)
    output, said = process.communicate(timeout=60)
    assert (process.returncode, output) == (3, "")
    assert len(said.splitlines()) == 1
    assert "was killed by SIGKILL, as the system does when memory runs out" in said


@pytest.mark.parametrize("imported", ["attr", "strata.cli", "strata.http.listener"])
def test_interrupted_while_it_is_imported_it_ends_without_a_traceback(tiny_model_path: Path, imported: str) -> None:
    """B41: by the signal, or with its number, or in order where it had come to loading."""
    command = [sys.executable, "-X", "importtime", "-m", "strata", "serve", "--port", "0", "--model", tiny_model_path]
    # A shell that runs the tests in the background has them ignore it.
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeds
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.rstrip().endswith(f" {imported}"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
        assert process.wait(60) in (-signal.SIGINT, 128 + signal.SIGINT, 0)
    assert "Traceback" not in rest


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_told_twice_it_ends_now_with_an_error_event(default_model_path: Path, second: signal.Signals) -> None:
    """B41: by Ctrl-C too; and its exit code says that it did not end in order."""
    with served("--model", default_model_path, "--drain-timeout-s", "300") as server:
        running = Stream(server, "Count.", max_tokens=4000, ignore_eos=True)
        running.began.wait()
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.get("/ready")[0] == 503, "it is not ready any more")
        server.process.send_signal(second)
        running.join()
        assert running.error["type"] == "shutting_down"
        assert server.process.wait(30) == 128 + second


def _as_in_a_terminal() -> None:
    """Its own, and with a signal that whoever started the tests may have them ignore."""
    fcntl.ioctl(0, TIOCSCTTY)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def in_a_terminal(*command: str | Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """With the terminal that it was started at; closing that hangs up."""
    ours, its = os.openpty()
    process = subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, start_new_session=True, preexec_fn=_as_in_a_terminal
    )
    os.close(its)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("outlives", [False, True])
def test_a_closed_terminal_ends_it_in_order_unless_it_was_started_to_outlive_it(
    tiny_model_path: Path, tmp_path: Path, outlives: bool
) -> None:
    """B40: SIGHUP, which comes twice, is as good as one SIGTERM, though nothing can be said any more."""
    path = tmp_path / "s"
    serve = strata("serve", "--host", f"unix:{path}", "--model", tiny_model_path)
    # What `nohup` does, without a file of its own.
    ignores = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"] if outlives else []
    with in_a_terminal(*ignores, *serve) as (process, terminal), socket.socket(socket.AF_UNIX) as client:
        until(lambda: process.poll() is not None or ready_at(path), "it is up")
        client.connect(str(path))
        body = json.dumps(chat_body("Count.", max_tokens=600, ignore_eos=True, stream=True)).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = client.recv(65536)
        os.close(terminal)
        process.send_signal(signal.SIGHUP)
        while data := b"" if b"[DONE]" in answer else client.recv(65536):
            answer += data
        assert b"data: [DONE]" in answer
        if outlives:
            assert ready_at(path)
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_told_to_stop_with_one_running_one_parked_and_five_queued_it_lets_two_end(default_model_path: Path) -> None:
    """B40: and leaves no process behind."""
    flags = ("--policy", "preempt", "--chunk-tokens", "64", "--kv-mib", "256", "--drain-timeout-s", "300")
    with served("--model", default_model_path, *flags) as server:
        parked = Stream(server, LONG[:600], max_tokens=4, ignore_eos=True)
        until(lambda: states(server) == ["reading"], "it reads")
        running = Stream(server, "Count.", max_tokens=300, ignore_eos=True)
        running.began.wait()
        queued = [RawChat(server, "Wait.", max_tokens=60) for _ in range(5)]
        until(lambda: states(server) == ["decoding", "parked (reading)", *["queued"] * 5], "five are queued")
        family = {server.process.pid, *children(server.process.pid)}
        server.process.send_signal(signal.SIGTERM)
        for client in queued:
            assert_told_to_come_back(client)
        assert server.get("/ready")[0] == 503
        running.whole()
        parked.whole()
        assert server.process.wait(30) == 0
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family - {server.process.pid}), "all are gone")


def states(server: Server) -> list[str]:
    return sorted(actor["state"] for actor in server.requests().values())


def test_it_tells_systemd_when_it_is_up_and_when_it_closes_down(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Type=notify`: by a datagram to the socket of NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with served("--model", tiny_model_path) as server:
            assert manager.recv(100) == b"READY=1"
            assert server.get("/ready")[0] == 200
            server.process.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert server.process.wait(30) == 0


def test_engines_that_die_too_often_are_told_to_every_client_and_end_the_server(tiny_model_path: Path) -> None:
    """B36: one engine for each of the first three, none for the fourth; exit code 3.

    B35, B56: an error event or 503 for all.  A trace that can't be written kills a real engine.
    """
    arguments = ("--model", tiny_model_path, "--trace", "/dev/full", "--policy", "fifo", "--restart-limit", "2")
    with served(*arguments) as server:
        streams = [Stream(server, LONG[:900], max_tokens=8) for _ in range(4)]
        for stream in streams:
            stream.join()
            assert stream.error["type"] == "engine_unavailable"
            assert not stream.done
        assert server.process.wait(30) == 3
        assert any("the engine died 3 times in 300 s" in line for line in server.said)


def traced(model: Path, trace: Path, *, disturbed: bool) -> None:
    """A long read and then a short chat; `disturbed`: the short one while the long one reads."""
    with served("--model", model, "--chunk-tokens", "64", "--kv-mib", "256", "--trace", trace) as server:
        long = Stream(server, LONG[:900], max_tokens=4, seed=1)
        until(lambda: any(actor["state"] == "reading" for actor in server.requests().values()), "it reads")
        if not disturbed:
            long.whole()
        Stream(server, "Hello", max_tokens=4, ignore_eos=True, seed=2).whole()
        long.whole()


def test_two_runs_that_gave_way_differently_leave_the_same_trace(default_model_path: Path, tmp_path: Path) -> None:
    """No schedule changes a bit: keys, values and tokens of each sequence, slice by slice."""
    calm, busy = tmp_path / "calm", tmp_path / "busy"
    traced(default_model_path, calm, disturbed=False)
    traced(default_model_path, busy, disturbed=True)
    same = run("trace", "diff", calm, busy)
    assert (same.returncode, same.stdout) == (0, "the same\n")
    lines = busy.read_text().splitlines()
    assert calm.read_text().splitlines() != lines, "the second run interleaved nothing"
    changed = json.loads(lines[5])
    changed["state"]["kv"] = "0" * 32
    busy.write_text("\n".join([*lines[:5], json.dumps(changed), *lines[6:]]) + "\n")
    other = run("trace", "diff", calm, busy)
    assert other.returncode == 1
    assert "line 6" in other.stdout
