"""The command line: flags become settings, problems become one line and an exit code."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import socket
import subprocess
import sys
from pathlib import Path

import attrs
import click
import pytest
from click.testing import CliRunner

from strata.cli import cli, main
from strata.cli.choose import ENGINE_HOST
from strata.cli.codes import NOBODY_READS
from strata.cli.settings import KINDS
from strata.config import EngineSettings, HostSettings, RequestSettings, SchedulerSettings, ServeSettings
from strata.cpu.choice import NUMPY, VARIABLE, runnable
from strata.cpu.machine import usable_processors
from strata.models import open_model


@pytest.fixture(autouse=True)
def chosen_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there was no compiler NumPy is what is wanted: `doctor` would say what to do about it, and end with 1."""
    if runnable() == [NUMPY]:
        monkeypatch.setenv(VARIABLE, NUMPY)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit code and what was printed."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def command_of(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def test_every_setting_is_a_flag_of_serve_and_of_doctor() -> None:
    kinds = (ServeSettings, SchedulerSettings, EngineSettings, HostSettings, RequestSettings)
    names = {field.name for kind in kinds for field in attrs.fields(kind)}
    for command in ("serve", "doctor"):
        assert names <= {parameter.name for parameter in command_of(command).params}


def settings_of(*path: str) -> set[str]:
    """Of the command that is called so: its flags that are settings."""
    command = command_of(path[0])
    for name in path[1:]:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    names = {field.name for kind in KINDS.values() for field in attrs.fields(kind)}
    return names & {parameter.name for parameter in command.params}


@pytest.mark.parametrize(
    ("command", "used"),
    [
        ("operations", {"device", "activations", "products", "threads", "context"}),
        (
            "throughput",
            {"device", "activations", "products", "threads", "context", "kv_mib", "page_tokens", "chunk_tokens"},
        ),
    ],
)
def test_a_measurement_of_a_model_alone_takes_the_settings_of_the_model_alone(command: str, used: set[str]) -> None:
    assert settings_of("bench", command) == used


@pytest.mark.parametrize("command", [("bench", "contention"), ("bench", "overhead"), ("simulate",), ("chat",)])
def test_what_becomes_of_dead_engines_is_asked_only_where_another_takes_their_place(command: tuple[str, ...]) -> None:
    deaths = {"restart_limit", "restart_window_s", "restart_backoff_s", "on_engine_death", "max_replays"}
    assert deaths <= settings_of("serve")
    assert settings_of(*command)
    assert not deaths & settings_of(*command)


def test_a_simulation_takes_no_setting_of_what_it_does_not_simulate() -> None:
    assert not {"arena_mib", "swap_ratio", "speculate"} & settings_of("simulate")
    assert {"quantum_s", "page_tokens", "max_half_read", "threads"} <= settings_of("simulate")


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(command in out for command in ("serve", "pull", "doctor", "trace"))


def test_the_help_says_in_whole_sentences_what_each_command_is_for() -> None:
    commands = map(command_of, cli.list_commands(click.Context(cli)))
    for group in (cli, *(command for command in commands if isinstance(command, click.Group))):
        said = CliRunner().invoke(group, ["--help"], terminal_width=80).output
        assert "..." not in said.replace("[ARGS]...", "")
        assert all(len(line) <= 80 for line in said.splitlines())


@pytest.mark.parametrize("arguments", [("--help",), ("settings",), ("settings", "--markdown")])
def test_where_nobody_reads_any_more_it_ends_quietly(arguments: tuple[str, ...]) -> None:
    """`strata settings | head`: as a shell shows it of a tool that dies of SIGPIPE, whoever printed (click, rich)."""
    read_end, output = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "strata", *arguments], stdout=output, stderr=subprocess.PIPE, check=False
    )
    os.close(output)
    assert (done.returncode, done.stderr) == (NOBODY_READS, b"")


def test_doctor_shows_the_model_and_what_a_flag_changes(
    capsys: pytest.CaptureFixture[str], tiny_model_path: Path
) -> None:
    code, out, _ = run(capsys, "doctor", "--model", str(tiny_model_path), "--policy", "fifo", "--page-tokens", "32")
    assert code == 0
    assert "llama" in out
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert rows["preempt"].endswith("off  (default slice; from policy fifo)")
    assert rows["page_tokens"].endswith("32  (default 64; from the command line)")
    # As the table of settings, and a file of them, have it.
    assert rows["prefix_cache"].split()[1] == "true"


def settings_in(said: str) -> dict[str, str]:
    """What `strata doctor` shows of each setting."""
    shown = said.partition("settings (")[2].partition("\nbound on waiting")[0].splitlines()[1:]
    return {line.split()[0]: line[23:] for line in shown}


def test_doctor_says_of_an_unset_setting_what_will_be_used(
    capsys: pytest.CaptureFixture[str], tiny_model_path: Path
) -> None:
    _, out, _ = run(capsys, "doctor", "--model", str(tiny_model_path))
    rows, names = settings_in(out), [field.name for kind in KINDS.values() for field in attrs.fields(kind)]
    assert {*names, "served_name"} <= set(rows)
    assert not [name for name, said in rows.items() if said == "unset"]
    assert rows["engine_host"] == f"{ENGINE_HOST}  (unset)"
    assert rows["threads"] == f"{usable_processors()}  (unset)"
    assert rows["context"] == f"{open_model(tiny_model_path).config.context}, less if kv_mib holds less  (unset)"
    assert rows["served_name"] == f"{open_model(tiny_model_path).name}  (unset)"
    assert rows["allowed_hosts"] == "127.0.0.1 ::1 localhost  (unset)"
    assert rows["kv_mib"].startswith("unset: a quarter of what is free")


def test_what_will_be_used_follows_the_other_settings(
    capsys: pytest.CaptureFixture[str], tiny_model_path: Path
) -> None:
    asked = ("--host", "0.0.0.0", "--engine-host", "process", "--engine-cpus", "0", "--served-name", "mine")
    _, out, _ = run(capsys, "doctor", "--model", str(tiny_model_path), *asked)
    rows = settings_in(out)
    assert rows["allowed_hosts"] == "any  (unset)"
    assert rows["threads"] == "1  (unset)"
    assert rows["served_name"] == "mine  (default unset; from the command line)"


def test_doctor_says_what_is_used_where_there_is_no_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = run(capsys, "doctor", "--model", str(tmp_path / "none.gguf"))
    assert settings_in(out)["context"] == "unset: what the model was trained for"


def test_doctor_shows_how_long_anybody_can_be_made_to_wait(
    capsys: pytest.CaptureFixture[str], tiny_model_path: Path
) -> None:
    """R12: with what is measured by name, or in seconds where it is given."""
    one_row = ("--model", str(tiny_model_path), "--policy", "preempt")
    _, out, _ = run(capsys, "doctor", *one_row, "--order-share", "0.5")
    assert "(own work + that of older equals) / 0.5 + 10 s + chunk + 32 steps" in out
    _, out, _ = run(capsys, "doctor", *one_row, "--rates", "2", "0.05", "0.1")
    assert "(own work + that of older equals) / 0.25 + 15.2 s" in out


def test_doctor_says_what_to_do_about_a_bad_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    code, out, _ = run(capsys, "doctor", "--model", str(tmp_path / "bad.gguf"))
    assert code == 1
    assert "->" in out


def test_doctor_never_shows_a_key(capsys: pytest.CaptureFixture[str], tiny_model_path: Path) -> None:
    """B64: a key is in no output."""
    keys = ("--api-key", "hidden-one", "--admin-key", "hidden-two")
    code, out, err = run(capsys, "doctor", "--model", str(tiny_model_path), *keys)
    assert code == 0
    assert "hidden" not in out + err
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert rows["api_keys"].endswith("set  (default unset; from the command line)")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("serve", "--policy", "fastest"), "--policy"),
        (("serve", "--nonsense"), "--nonsense"),
        (("serve", "--max-running", "many"), "--max-running"),
        (("doctor", "--order-share", "2"), "order_share"),
        (("serve", "--tls-cert", "x.pem"), "--tls-key"),
        (("fly",), "fly"),
    ],
)
def test_what_can_not_be_is_refused_with_exit_code_2_and_named(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], named: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert named in err
    assert "Traceback" not in err


def test_a_public_socket_that_is_passed_in_needs_a_key(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """B64: refused before a model is looked for, which isn't there."""
    for host, refused in (("0.0.0.0", "--api-key"), ("127.0.0.1", "nowhere.gguf")):
        with socket.create_server((host, 0)) as passed:
            fd = os.dup(passed.fileno())
            code, out, err = run(capsys, "serve", "--host", f"fd://{fd}", "--model", str(tmp_path / "nowhere.gguf"))
        assert (code, out) == (2, "")
        assert refused in err


def line(seq: int, state: str) -> str:
    values = {"seq": seq, "what": "decode", "position": 3, "token": 1, "state": {"kv": state}}
    return json.dumps(values) + "\n"


def test_trace_diff_names_the_first_line_that_differs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text(line(1, "x") + line(2, "y"))
    b.write_text(line(2, "y") + line(1, "x"))
    assert run(capsys, "trace", "diff", str(a), str(b))[:2] == (0, "the same\n")
    b.write_text(line(2, "y") + line(1, "z"))
    code, out, _ = run(capsys, "trace", "diff", str(a), str(b))
    assert code == 1
    assert "sequence 1" in out


@pytest.mark.parametrize("content", ["no json", "[]", '{"seq": 1}'])
def test_a_file_that_is_no_trace_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str
) -> None:
    (tmp_path / "a").write_text(content)
    code, _, err = run(capsys, "trace", "diff", str(tmp_path / "a"), str(tmp_path / "a"))
    assert code == 2
    assert "Traceback" not in err


def test_a_trace_that_is_not_there_is_said_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "trace", "diff", str(tmp_path / "none"), str(tmp_path / "a"))
    assert (code, err) == (2, f"Error: {tmp_path / 'none'}: No such file or directory\n")


@pytest.mark.parametrize("value", ["off", "chunk", "slice"])
def test_a_choice_is_taken_as_the_help_and_the_documents_write_it(
    capsys: pytest.CaptureFixture[str], tiny_model_path: Path, value: str
) -> None:
    code, out, _ = run(capsys, "doctor", "--model", str(tiny_model_path), "--preempt", value)
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert rows["preempt"].split()[1] == value


def test_in_a_terminal_what_doctor_finds_is_wrapped_beside_its_name(tiny_model_path: Path) -> None:
    """No line is longer than the terminal, and none begins in the names' column but with a name."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "strata", "doctor", "--model", str(tiny_model_path)]
    # This many for whoever asks the environment, and not the terminal, which is as wide.
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "80"})
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # what reading says when nobody holds the other end any more
        while part := os.read(ours, 65536):
            said += part
    os.close(ours)
    assert process.wait() == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said.decode()).splitlines()
    wrapped = [line for line in lines if line.startswith(" " * 23)]
    assert wrapped
    assert all(len(line) <= 80 for line in lines if str(tiny_model_path) not in line)
    assert any("(reads of it and older equals)" in line for line in lines)


def test_where_there_is_no_output_at_all_doctor_answers_all_the_same(tiny_model_path: Path) -> None:
    closed = [
        "sh",
        "-c",
        'exec "$@" >&-',
        "sh",
        sys.executable,
        "-m",
        "strata",
        "doctor",
        "--model",
        str(tiny_model_path),
    ]
    done = subprocess.run(closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_folder_that_is_not_there_has_no_models_to_list(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, said = run(capsys, "models", str(tmp_path / "none"))
    assert code == 2
    assert "none" in said


def test_one_question_that_can_not_be_answered_is_told_by_the_exit_code(
    capsys: pytest.CaptureFixture[str], tiny_model_path: Path
) -> None:
    code, out, said = run(capsys, "chat", "a " * 5000, "--model", str(tiny_model_path))
    assert (code, out) == (1, "")
    assert "tokens" in said
    assert "/reset" not in said
