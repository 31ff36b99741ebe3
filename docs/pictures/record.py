"""Makes the terminal pictures in this folder: runs the real commands in a terminal of 80 columns, and draws it.

    python docs/pictures/record.py

Takes the default model (`strata pull`), a free port and a minute.  A picture is what rich draws of the terminal's
text; nothing in it is written by hand.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import platform
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import rich.console
import rich.terminal_theme
import rich.text

HERE: Final = Path(__file__).parent
STRATA: Final = (sys.executable, "-m", "strata")
COLUMNS, ROWS = 80, 40
PATIENCE_S: Final = 120.0
NOISE: Final = re.compile(r"\x1b\[\?\d+[hl]|\x1b\][^\x07]*\x07|\r")
"""What a terminal is told about itself (bracketed paste, titles)."""

SHAPE: Final = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}
{styles}</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""rich's, without the fonts that it loads from elsewhere."""


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"}
        self._process = subprocess.Popen(
            [*STRATA, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
        )
        os.close(theirs)
        self.said = ""

    def type(self, line: str) -> None:
        os.write(self._ours, line.encode() + b"\n")

    def until(self, end: str | None = None) -> None:
        """Read until it ends with `end`, or is over."""
        limit = time.monotonic() + PATIENCE_S
        while end is None or not NOISE.sub("", self.said).endswith(end):
            if time.monotonic() > limit:
                raise TimeoutError(self.said)
            if not select.select([self._ours], [], [], 1.0)[0]:
                continue
            try:
                self.said += os.read(self._ours, 65536).decode(errors="replace")
            except OSError:  # what reads a terminal that nobody holds any more
                break

    def close(self) -> str:
        """What it said, when it has ended."""
        self._process.wait(PATIENCE_S)
        os.close(self._ours)
        return NOISE.sub("", self.said)


def run(*arguments: str) -> str:
    terminal = Terminal(*arguments)
    terminal.until()
    return terminal.close()


def talk(lines: Sequence[str]) -> str:
    """A conversation; greedy, so that it is the same whenever it is recorded."""
    terminal = Terminal("chat", "--temperature", "0", "--max-tokens", "120")
    for line in lines:
        terminal.until("> ")
        terminal.type(line)
    terminal.until()
    return terminal.close()


def anybodys(said: str) -> str:
    """Without what is this machine's alone: where its home is, and who built its kernel."""
    return said.replace(str(Path.home()), "~").replace(platform.release(), platform.release().partition("-")[0])


def draw(name: str, command: str, said: str) -> None:
    console = rich.console.Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(rich.text.Text.from_ansi(f"\x1b[1m$ {command}\x1b[0m\n{anybodys(said).strip()}"))
    drawn = console.export_svg(
        title=command, theme=rich.terminal_theme.MONOKAI, code_format=SHAPE, unique_id=f"strata-{name}"
    )
    (HERE / f"{name}.svg").write_text(drawn, encoding="utf-8")


@contextlib.contextmanager
def busy_server() -> Iterator[str]:
    """A server whose clients read and write: its address."""
    served = subprocess.Popen([*STRATA, "serve", "--port", "0", "--no-access-log"], stdout=subprocess.PIPE, text=True)
    try:
        assert served.stdout is not None
        url = next(found[0] for line in served.stdout if (found := re.search(r"http://[\d.]+:\d+", line)))
        for words in (6, 12, 1500):
            threading.Thread(target=ask, args=(url, words), daemon=True).start()
        time.sleep(4)
        yield url
    finally:
        served.terminate()
        served.wait(PATIENCE_S)


def ask(url: str, words: int) -> None:
    text = "Tell me a long story about " + "the sea and " * (words // 3) + "the wind."
    body = f'{{"messages": [{{"role": "user", "content": "{text}"}}], "max_tokens": 900}}'.encode()
    request = urllib.request.Request(url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
    with contextlib.suppress(OSError), urllib.request.urlopen(request) as answer:
        answer.read()


def main() -> None:
    draw("doctor", "strata doctor", run("doctor"))
    draw("chat", "strata chat", talk(["What is the capital of France?", "And of Italy?", "/stats", "/quit"]))
    with busy_server() as url:
        draw("inspect", f"strata inspect --once {url}", run("inspect", "--once", url))


if __name__ == "__main__":
    main()
