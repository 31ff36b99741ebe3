"""What systemd is told, and that nobody is hindered where it can't be."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from strata.cli.notify import notify

linux_alone = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract names")


def test_without_the_variable_nothing_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["a file", pytest.param("an abstract name", marks=linux_alone)])
def test_the_manager_gets_each_state_in_a_datagram(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = str(tmp_path / "s") if kind == "a file" else f"@strata-test-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify("READY=1")
        notify("STOPPING=1")
        assert [manager.recv(100), manager.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_a_manager_that_is_not_there_is_said_and_hinders_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify("READY=1")
    assert "NOTIFY_SOCKET" in capsys.readouterr().err
