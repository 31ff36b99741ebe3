"""The conversation in the terminal, over the real runtime and a scripted engine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import strata
from strata.cli import cli
from strata.cli.background import Background
from strata.cli.chat import Conversation, talk
from strata.errors import EngineUnavailable, ModelError
from strata.messages import Open
from strata.testing import Fault, Script, ScriptedEngine


def scripted(**named: Any) -> Background:
    return Background(strata.open_runtime(host=ScriptedEngine(**named)))


def conversation(background: Background, system: str | None = None) -> Conversation:
    return Conversation(background, system=system, asked={})


def typing(*lines: str | type[BaseException]) -> Any:
    """What a person types, and then the end of the input."""
    left: Iterator[str | type[BaseException]] = iter([*lines, EOFError])

    def read_line() -> str:
        line = next(left)
        if isinstance(line, str):
            return line
        raise line

    return read_line


def test_an_answer_is_printed_and_the_next_question_comes_with_all_that_was_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = ScriptedEngine(script=Script(by_text={"two": "second", "one": "first"}))
    with Background(strata.open_runtime(host=engine)) as background:
        talk(conversation(background, system="be brief"), typing("say one", "", "say two", "/stats"))
    out = capsys.readouterr().out
    assert "first\n" in out
    assert "second\n" in out
    whole = "system: be brief\nuser: say one\nassistant: first\nuser: say two\nassistant: "
    assert f"{len(whole)} tokens read" in out
    assert out.count("5 messages") == 1


def test_reset_forgets_what_was_said_but_not_the_system_message(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(script=Script(by_text={"one": "first"})) as background:
        talk(conversation(background, system="s"), typing("say one", "/reset", "/stats", "say one", "/stats"))
    out = capsys.readouterr().out
    assert "Nothing was answered yet." in out
    assert f"{len('system: s' + chr(10) + 'user: say one' + chr(10) + 'assistant: ')} tokens read" in out


def test_what_is_unknown_is_answered_with_the_help_and_quit_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted() as background:
        talk(conversation(background), typing("/foo", KeyboardInterrupt, "/help", "/quit", "/never reached"))
    out = capsys.readouterr().out
    assert "/foo is unknown." in out
    assert "(Ctrl-D or /quit ends)" in out
    assert "never" not in out


def test_an_answer_that_fails_is_said_and_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(context=64) as background:
        talk(conversation(background), typing("x" * 500, "/stats"))
    said = capsys.readouterr()
    assert "/reset begins anew" in said.err
    assert "Nothing was answered yet." in said.out


def test_ctrl_c_stops_the_answer_and_not_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    def letters_and_an_interrupt(_opened: Open, index: int) -> int:
        if index == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return ord("a")

    # A shell's background jobs ignore it.
    before = signal.getsignal(signal.SIGINT)
    engine = ScriptedEngine(script=Script(by_text={"one": "first"}, otherwise=letters_and_an_interrupt))
    with Background(strata.open_runtime(host=engine)) as background:
        talk(conversation(background), typing("go", "say one"))
    out = capsys.readouterr().out
    assert out.startswith("aaa")
    assert "a (stopped)\n" in out
    assert out.endswith("first\n")
    assert signal.getsignal(signal.SIGINT) is before


def test_what_a_terminal_would_obey_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(script=Script(by_text={"go": "a\x1b[2Jb\r\n\tc"})) as background:
        talk(conversation(background), typing("go"))
    assert capsys.readouterr().out == "a\ufffd[2Jb\ufffd\n\tc\n"


def test_a_runtime_that_can_not_start_says_why_in_the_main_thread(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="none"), Background(strata.open_runtime(tmp_path / "none.gguf")):
        raise AssertionError("it must not start")
    assert "strata-runtime" not in {thread.name for thread in threading.enumerate()}


def test_an_engine_that_dies_is_said_and_the_terminal_is_not_left_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    """B35: nobody waits for an actor that is gone."""
    with scripted(faults=[Fault(step=2, reason="it was hit")]) as background:
        talk(conversation(background), typing("go", "again", "/stats"))
    assert capsys.readouterr().err.count("it was hit") == 2


def test_a_question_after_the_runtime_has_ended_is_refused() -> None:
    with scripted() as background:
        pass
    with pytest.raises(EngineUnavailable):
        background.ask([])


def test_a_single_question_is_answered_by_a_model_and_the_command_ends(tiny_model_path: Path) -> None:
    arguments = ["chat", "hello", "--model", str(tiny_model_path), "--temperature", "0", "--max-tokens", "4"]
    first, second = (CliRunner().invoke(cli, arguments, catch_exceptions=False) for _ in range(2))
    assert first.exit_code == 0
    assert first.output == second.output
    assert first.output.strip()


def test_an_empty_question_is_refused_before_a_model_is_opened() -> None:
    result = CliRunner().invoke(cli, ["chat", " \n", "--model", "nowhere.gguf"])
    assert result.exit_code == 2
    assert "QUESTION is empty" in result.output
