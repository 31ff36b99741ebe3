"""A newcomer's path, timed: a fresh clone, `make serve`, the first answer, fetched over a line of so many Mbit/s.

    python bench/first_start.py [--mbit 50] [--out bench/results/first-start.json]

The clone gets a home of its own, so that no cache is there, and a proxy on loopback that lets through no more than the
line would.  The steps are those of `make serve`, one after the other; the libraries come first by themselves, so that
what is left of the installation is Strata's own: its kernels are compiled.  Of each: seconds by the clock, seconds of
processors, and what was fetched.  The clone is of this machine's repository; what it would be on the line is reckoned.
Needs git, make, a C compiler and a direct way to the package index.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

ROOT = Path(__file__).parents[1]
PIECE = 16384
KEPT = ("PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "PIP_CERT", "REQUESTS_CA_BUNDLE")
"""Of the environment: what finds programs and certificates."""
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}


class Line:
    """A CONNECT proxy, all of whose clients share one line."""

    def __init__(self, mbit: float) -> None:
        self.bytes = 0
        self.port = 0
        self._bytes_per_s = mbit * 1e6 / 8
        self._free_at = 0.0
        self._up = threading.Event()

    def begin(self) -> None:
        """In a thread of its own, to the end of this process."""
        threading.Thread(target=trio.run, args=(self._serve,), daemon=True).start()
        self._up.wait()

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.port = listener.socket.getsockname()[1]
            self._up.set()
            await trio.serve_listeners(self._connect, [listener], handler_nursery=nursery)

    async def _connect(self, client: trio.SocketStream) -> None:
        try:
            host, _, port = (await _head(client)).split()[1].decode().rpartition(":")
            async with client, await trio.open_tcp_stream(host, int(port)) as server, trio.open_nursery() as nursery:
                await client.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
                nursery.start_soon(_pass_on, client, server, None)
                nursery.start_soon(_pass_on, server, client, self._wait_for)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # whoever asked sees it

    async def _wait_for(self, size: int) -> None:
        """Until the line has carried so much more."""
        self.bytes += size
        self._free_at = max(self._free_at, trio.current_time()) + size / self._bytes_per_s
        await trio.sleep_until(self._free_at)


async def _head(client: trio.SocketStream) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await client.receive_some(1)
    return head


async def _pass_on(source: trio.SocketStream, sink: trio.SocketStream, first: Callable[[int], Any] | None) -> None:
    async for data in source:
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            if first is not None:
                await first(len(piece))
            await sink.send_all(piece)
    await sink.send_eof()


class Newcomer:
    """One who begins in an empty folder."""

    def __init__(self, folder: Path, line: Line) -> None:
        self.clone = folder / "strata"
        self.phases: list[dict[str, Any]] = []
        self._line = line
        home = folder / "home"
        home.mkdir()
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        own = {"HOME": str(home), "TMPDIR": str(folder), "PIP_CONFIG_FILE": os.devnull}
        self._environ = kept | own | {"HTTPS_PROXY": f"http://127.0.0.1:{line.port}"}

    def timed(self, what: str, run: Callable[[], Any]) -> None:
        began, cpu, fetched = time.monotonic(), _cpu_s(), self._line.bytes
        run()
        phase = {
            "what": what,
            "s": round(time.monotonic() - began, 2),
            "processor_s": round(_cpu_s() - cpu, 2),
            "fetched_bytes": self._line.bytes - fetched,
        }
        self.phases.append(phase)
        print(f"{what:42} {phase['s']:7.1f} s {phase['processor_s']:7.1f} s {phase['fetched_bytes'] / 1e6:7.1f} MB")

    def run(self, *command: str) -> None:
        subprocess.run(command, cwd=self.clone, env=self._environ, check=True, stdout=subprocess.DEVNULL)

    def begin(self) -> None:
        git = ("git", "clone", "--quiet", "--no-local", str(ROOT), str(self.clone))
        subprocess.run(git, check=True)

    def libraries(self) -> None:
        wanted = tomllib.loads((self.clone / "pyproject.toml").read_text())["project"]["dependencies"]
        pip = (".venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        self.run(*pip, *wanted)

    def first_answer(self) -> None:
        command = (".venv/bin/strata", "serve", "--port", "0")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, cwd=self.clone, env=self._environ, text=True, **pipes) as server:
            assert server.stdout is not None
            address = next(line.split("//")[1].strip() for line in server.stdout if "listening on" in line)
            client = http.client.HTTPConnection(address, timeout=60)
            client.request("POST", "/v1/chat/completions", json.dumps(QUESTION), {"content-type": "application/json"})
            print(json.loads(client.getresponse().read())["choices"][0]["message"]["content"])
            client.close()
            server.terminate()


def _cpu_s() -> float:
    """Of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=50.0, help="what the line carries, Mbit/s")
    parser.add_argument("--python", default="python3", help="the newcomer's")
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    before, line = os.getloadavg(), Line(asked.mbit)
    line.begin()
    with TemporaryDirectory() as folder:
        newcomer = Newcomer(Path(folder), line)
        newcomer.timed("git clone", newcomer.begin)
        pack = sum(file.stat().st_size for file in newcomer.clone.glob(".git/objects/pack/*.pack"))
        make = ("make", f"PYTHON={asked.python}")
        newcomer.timed("a Python environment", lambda: newcomer.run(*make, ".venv/bin/python"))
        newcomer.timed("the libraries", newcomer.libraries)
        newcomer.timed("Strata itself, its kernels compiled", lambda: newcomer.run(*make, ".venv/.installed"))
        newcomer.timed("the default model", lambda: newcomer.run(".venv/bin/strata", "pull"))
        newcomer.timed("start, first answer and end of the server", newcomer.first_answer)
    clone_s = pack * 8 / asked.mbit / 1e6
    total_s = sum(phase["s"] for phase in newcomer.phases) + clone_s
    print(f"{total_s:.0f} s in all, with {clone_s:.1f} s that the clone ({pack / 1e6:.1f} MB) takes on the line")
    result = {
        "command": shlex.join(["bench/first_start.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}",
        "load_average": {"before": before, "after": os.getloadavg()},
        "mbit": asked.mbit,
        "clone_bytes": pack,
        "total_s": round(total_s, 1),
        "phases": newcomer.phases,
    }
    if asked.out is not None:
        asked.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
