"""Models by their name on the Hub: found in its cache without a network, and fetched from a server like it."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from strata.errors import ModelError
from strata.models.file import open_model
from strata.models.hub import find_model, pull_model

CHECKPOINT = Path(__file__).parents[1] / "data" / "checkpoints" / "qwen3"
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """As the Hub's library lays it out: org/tiny is a checkpoint, org/two has two GGUF files, org/one has one."""
    root = tmp_path / "hub"
    shutil.copytree(CHECKPOINT, snapshot(root, "tiny"))
    for name, files in {"one": ["a.Q4_1.gguf"], "two": ["a.gguf", "b.gguf"], "none": ["README.md"]}.items():
        for file in files:
            (snapshot(root, name, make=True) / file).write_bytes(b"GGUF")
    return root


def snapshot(root: Path, name: str, *, make: bool = False) -> Path:
    repo = root / f"models--org--{name}"
    (repo / "refs").mkdir(parents=True, exist_ok=True)
    (repo / "refs" / "main").write_text(REVISION)
    folder = repo / "snapshots" / REVISION
    if make:
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_model_that_was_pulled_is_found_by_its_name_without_a_network(cache: Path) -> None:
    folder = find_model("org/tiny", cache=cache)
    model = open_model(folder)
    assert (model.name, model.architecture) == ("tiny", "qwen3")
    assert find_model("org/one", cache=cache).name == "a.Q4_1.gguf"
    assert find_model("org/two/b.gguf", cache=cache).name == "b.gguf"


def test_a_path_is_a_path_whatever_it_looks_like(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "tiny").write_bytes(b"")
    assert find_model("org/tiny", cache=cache) == Path("org/tiny")
    for name in ("./org/none", "/org/none", "model.gguf", "a/b/c/d"):
        assert find_model(name, cache=cache) == Path(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("org/absent", "`strata pull org/absent` fetches it"),
        ("org/one/b.gguf", "`strata pull org/one/b.gguf` fetches it"),
        ("org/two", "several GGUF files; name one of them: org/two/a.gguf, org/two/b.gguf"),
        ("org/none", "`strata pull org/none` fetches it"),
        ("org/a--b", "could not be fetched"),
    ],
)
def test_a_name_that_stands_for_nothing_here_says_what_to_do(cache: Path, name: str, says: str) -> None:
    """B37"""
    with pytest.raises(ModelError) as refused:
        find_model(name, cache=cache)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("name", "says"), [("", "no model is named"), (300 * "x", "can't be looked at")])
def test_what_can_be_no_path_is_no_model(name: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        find_model(name)


def test_what_is_no_name_on_the_hub_is_not_asked_for() -> None:
    with pytest.raises(ModelError, match="no name on the Hub"):
        pull_model("tiny")


# -- a server like the Hub ------------------------------------------------------------------------------------------


class Hub(BaseHTTPRequestHandler):
    """Serves the checkpoint as org/tiny, and beside it a file that nobody needs."""

    protocol_version = "HTTP/1.1"
    fetched: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/tiny"):
            files = [{"rfilename": file.name} for file in CHECKPOINT.iterdir()] + [{"rfilename": "pytorch_model.bin"}]
            tree = [{"type": "file", "path": file["rfilename"], "size": 1, "oid": "0"} for file in files]
            info = {"id": "org/tiny", "sha": REVISION, "siblings": files, "private": False}
            self._answer(json.dumps(tree if "/tree/" in path else info).encode(), "application/json")
        elif path.startswith("/org/tiny/resolve/"):
            name = path.rpartition("/")[2]
            if self.command == "GET":
                self.fetched.append(name)
            self._answer((CHECKPOINT / name).read_bytes(), "application/octet-stream")
        else:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _answer(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", REVISION)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    handler = type("Handler", (Hub,), {"fetched": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler.fetched
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_is_fetched_once_and_without_what_it_does_not_need(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    address, fetched = hub
    folder = pull_model("org/tiny", cache=tmp_path, endpoint=address)
    assert sorted(fetched) == sorted(file.name for file in CHECKPOINT.iterdir())
    assert open_model(folder).architecture == "qwen3"
    fetched.clear()
    assert pull_model("org/tiny", cache=tmp_path, endpoint=address) == folder
    assert fetched == []
    assert find_model("org/tiny", cache=tmp_path) == folder
    assert pull_model("org/tiny", cache=tmp_path, endpoint="http://127.0.0.1:9") == folder


def test_a_hub_that_does_not_answer_or_has_no_such_model_is_said_in_one_line(
    hub: tuple[str, list[str]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """B37: and soon."""
    for name, endpoint in (
        ("org/tiny", "http://127.0.0.1:9"),
        ("org/tiny/model.gguf", "http://127.0.0.1:9"),
        ("org/other", hub[0]),
    ):
        with pytest.raises(ModelError, match=f"{name} could not be fetched") as refused:
            pull_model(name, cache=tmp_path, endpoint=endpoint)
        assert "\n" not in str(refused.value)
    # The library's own tries are several, with pauses and a line each.
    assert "Retry" not in caplog.text + capsys.readouterr().err
