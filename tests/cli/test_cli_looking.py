"""The commands that only look: settings, models, inspect, completion."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
import rich.console
import trio
from click.testing import CliRunner, Result

import strata
from strata.cli import cli
from strata.cli.completion import SHELLS
from strata.cli.inspect import table
from strata.cli.settings import KINDS, page
from strata.testing import ScriptedEngine

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **environment: str) -> str:
    result = CliRunner().invoke(cli, arguments, env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_page_of_settings_is_what_the_code_says() -> None:
    """Made by `strata settings --markdown > docs/settings.md`."""
    assert (ROOT / "docs/settings.md").read_text(encoding="utf-8") == page()
    assert run("settings", "--markdown") == page()


def test_every_setting_has_its_line_for_people() -> None:
    out = run("settings", COLUMNS="200")
    names = [field.name for kind in KINDS.values() for field in attrs.fields(kind)]
    assert all(re.search(rf"^\s+{name}\s", out, re.MULTILINE) for name in names)


def test_the_models_in_a_folder_are_listed_with_what_is_wrong_with_them(tiny_model_path: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_model_path, tmp_path / "good.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    out = run("models", str(tmp_path), COLUMNS="300", XDG_CACHE_HOME=str(tmp_path / "none"), HOME=str(tmp_path))
    rows = {Path(line.split()[0]).name: line for line in out.splitlines() if ".gguf" in line}
    assert "llama" in rows["good.gguf"]
    assert "llama" not in rows["bad.gguf"]
    assert "bad.gguf" in rows


def test_an_empty_cache_says_how_to_fill_it(tmp_path: Path) -> None:
    assert "strata pull" in run("models", XDG_CACHE_HOME=str(tmp_path), HOME=str(tmp_path), COLUMNS="200")


async def test_inspect_shows_each_actor_under_its_parent_and_what_a_request_took(
    autojump_clock: trio.testing.MockClock,
) -> None:
    question = {"role": "user", "content": "x" * 600}
    async with strata.open_runtime(host=ScriptedEngine()) as runtime, runtime.chat([question], max_tokens=5) as stream:
        await anext(aiter(stream))
        actors: list[Mapping[str, Any]] = msgspec.to_builtins(runtime.tree())
    shown = as_text(actors, now=max(actor["since"] for actor in actors) + 75)
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "618/618" in lines["request-1"]
    assert "decoding" in lines["request-1"]
    assert "1 m 15 s" in shown
    assert shown.index("runtime") < shown.index("  engine")


def test_a_busy_server_fits_a_terminal_of_80_columns() -> None:
    """Long prompts, cached and parked, for minutes; what nobody has (mail, restarts) takes no room."""
    figures = {
        "read_tokens": 49_152,
        "prompt_tokens": 50_000,
        "cached_tokens": 12_800,
        "written_tokens": 2_048,
        "parks": {"read": 7, "decode": 5},
        "engine_s": 1_234.5,
    }
    nobody = {"state": "running", "since": 0.0, "mailbox": 0, "restarts": 0}
    actors = [
        {**nobody, "id": "runtime", "parent": None},
        {**nobody, "id": "dispatcher", "parent": "runtime"},
        {**nobody, "id": "request-12345", "parent": "runtime", "state": "decoding", "figures": figures},
    ]
    shown = as_text(actors, now=3_000.0, width=80)
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert all(said in shown for said in ("49152/50000", "12800", "2048", "20 m 34 s", "request-12345", " 12 "))
    assert "mail" not in shown
    busy = as_text([{**actors[0], "mailbox": 3, "restarts": 2}], now=3_000.0)
    assert "mail" in busy
    assert "restarts" in busy


def as_text(actors: list[Mapping[str, Any]], now: float, width: int = 200) -> str:
    shown = io.StringIO()
    rich.console.Console(width=width, file=shown).print(table(actors, title="here", now=now))
    return shown.getvalue()


def test_inspect_of_nobody_says_so_in_one_line() -> None:
    result = CliRunner().invoke(cli, ["inspect", "http://127.0.0.1:9", "--once"])
    assert result.exit_code == 1
    assert "is one there?" in result.output
    assert "Traceback" not in result.output


def test_inspect_in_a_pipe_writes_each_look_as_it_takes_it() -> None:
    says = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"actors": []}'
    server = HTTPServer(("127.0.0.1", 0), type("Handler", (Somebody,), {"says": says}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    command = [sys.executable, "-m", "strata", "inspect", f"http://127.0.0.1:{server.server_port}", "--every", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        # One that wrote only at its end would never write.
        patience = threading.Timer(30, process.kill)
        patience.start()
        looks = [line for line in islice(process.stdout, 9) if "127.0.0.1" in line]
        patience.cancel()
        process.kill()
    server.shutdown()
    thread.join()
    server.server_close()
    assert len(looks) > 1


@pytest.mark.parametrize("shell", SHELLS)
def test_the_lines_for_a_shell_name_the_command(shell: str) -> None:
    assert "_STRATA_COMPLETE" in run("completion", shell)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_takes_the_lines() -> None:
    done = subprocess.run(["bash", "-n"], input=run("completion", "bash"), text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class Somebody(BaseHTTPRequestHandler):
    """Answers everything with the same bytes."""

    says: bytes

    def do_GET(self) -> None:
        self.wfile.write(self.says)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_inspect_tells_a_wrong_key_from_none() -> None:
    says = b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"
    assert "wants a key for /admin: give --admin-key" in inspected(says).output
    assert "doesn't take this key for /admin" in inspected(says, "--admin-key", "wrong").output


def test_inspect_of_a_server_that_loads_says_so() -> None:
    assert "is loading its model" in inspected(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n").output


def inspected(says: bytes, *options: str) -> Result:
    server = HTTPServer(("127.0.0.1", 0), type("Handler", (Somebody,), {"says": says}))
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    result = CliRunner().invoke(cli, ["inspect", f"http://127.0.0.1:{server.server_port}", "--once", *options])
    thread.join()
    server.server_close()
    return result


@pytest.mark.parametrize(
    "says",
    [
        b"\x1b[2J\xff\xfe nonsense\r\n\r\n",
        *(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            for body in (
                b"null",
                b"[1, 2]",
                b'{"actors": "x"}',
                b'{"actors": [1, null]}',
                b'{"actors": [{}]}',
                b"[" * 9000,
            )
        ),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_inspect_of_something_else_says_so_in_one_line(says: bytes) -> None:
    result = inspected(says)
    assert result.exit_code == 1
    assert result.output.startswith("Error: http://127.0.0.1")
    assert result.output.count("\n") == 1
    assert "\x1b" not in result.output
