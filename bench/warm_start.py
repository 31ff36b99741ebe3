#!/usr/bin/env python3
"""A second start: from the command to the first token, with the model and its index where the first start left them.

The server is asked again and again, from the moment that its port takes connections, and says "come back" until it is
ready; so is a client of one that restarts.  Times are from the command's begin, of a client that waits at most
`PAUSE_S` before it asks again.

    bench/warm_start.py --starts 10 --out bench/results/warm-start.json
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from record import machine

PAUSE_S = 0.02
PATIENCE_S = 60.0
BODY = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 2, "temperature": 0}


def started(arguments: list[str]) -> dict[str, float]:
    """Seconds to the first answer of any kind, and to the first token."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    began = time.monotonic()
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("strata")), "serve", "--port", str(port), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    found: dict[str, float] = {}
    try:
        while time.monotonic() - began < PATIENCE_S and process.poll() is None:
            answers = first_token(f"http://127.0.0.1:{port}/v1/chat/completions")
            if answers is not None:
                found.setdefault("answers", time.monotonic() - began)
            if answers:
                return found | {"token": time.monotonic() - began}
            time.sleep(PAUSE_S)
        raise SystemExit(f"no token came (exit code {process.poll()})")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def first_token(url: str) -> bool | None:
    """Whether one came; None: nobody answers yet."""
    asked = urllib.request.Request(url, json.dumps(BODY).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return any(b'"content":"' in line and b'"content":""' not in line for line in answer)
    except urllib.error.HTTPError:
        return False
    except OSError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--out", type=Path, help="the JSON to write")
    parser.add_argument("server_arguments", nargs="*", help="after --: more flags for strata serve")
    options = parser.parse_args()
    about = machine()
    # The first one may find files that are not in memory.
    started(options.server_arguments)
    starts = [started(options.server_arguments) for _ in range(options.starts)]
    result: dict[str, Any] = {
        "command": shlex.join(["bench/warm_start.py", *sys.argv[1:]]),
        "machine": about,
        "first_answer_s": statistics.median(one["answers"] for one in starts),
        "first_token_s": statistics.median(one["token"] for one in starts),
        "first_token_worst_s": max(one["token"] for one in starts),
        "samples": starts,
    }
    print(json.dumps(result, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
