"""An engine's log of its own, which an operator moves away, fills up or makes unwritable while the engine lives."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from strata.engine.child_log import child_log
from strata.errors import ConfigError

HERE = "what follows comes here until it can"


def test_a_log_whose_folder_is_moved_away_gives_its_lines_to_the_server_s_until_there_is_one_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "logs"
    folder.mkdir()
    with child_log(folder / "engine.log", "engine 1") as write:
        write(logging.INFO, "first")
        folder.rename(tmp_path / "moved")
        write(logging.INFO, "second")
        write(logging.ERROR, "third")
        folder.mkdir()
        write(logging.INFO, "fourth")
    assert (tmp_path / "moved/engine.log").read_text().endswith("INFO engine 1: first\n")
    said, *lines = caplog.messages
    assert HERE in said
    assert lines == ["engine 1: second", "engine 1: third"]
    assert (folder / "engine.log").read_text().endswith("INFO engine 1: fourth\n")


def test_a_log_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    with child_log(path, "engine 1") as write:
        write(logging.INFO, "first")
        path.rename(tmp_path / "old")
        write(logging.INFO, "second")
    assert "first" in (tmp_path / "old").read_text()
    assert path.read_text().endswith("INFO engine 1: second\n")
    assert "first" not in path.read_text()


def test_a_full_disk_is_said_once(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.INFO)
    with child_log(Path("/dev/full"), "engine 1") as write:
        write(logging.INFO, "first")
        write(logging.INFO, "second")
    said, *lines = caplog.messages
    assert "/dev/full can't be written (No space left on device)" in said
    assert lines == ["engine 1: first", "engine 1: second"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("read", [True, False])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, read: bool) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if read else None
    says = r"engine_log: .*pipe can't be written \(it is no file\)"
    with pytest.raises(ConfigError, match=says), child_log(path, "engine 1"):
        pass
    if reader is not None:
        os.close(reader)


def test_a_folder_is_refused_and_a_device_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="it is no file"), child_log(tmp_path, "engine 1"):
        pass
    with child_log(Path("/dev/null"), "engine 1") as write:
        write(logging.ERROR, "nobody reads this")
    assert not caplog.messages


def test_a_log_that_can_not_be_opened_hinders_no_successor(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with child_log(tmp_path / "nowhere/engine.log", "engine 2", checked=False) as write:
        write(logging.ERROR, "it lives")
    assert HERE in caplog.messages[0]
    assert caplog.messages[1:] == ["engine 2: it lives"]
