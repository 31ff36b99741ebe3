#!/usr/bin/env python3
"""Real clients against a running `strata serve`: whole answers, streams, refusals, the list of models.

Each is installed as its users install it, into an environment in a temporary folder that is gone afterwards, and runs
its script in `client_scripts`.  The JSON says which client passed what.

    bench/clients.py
    bench/clients.py --only openai-node curl
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

from record import machine, server

HERE = Path(__file__).parent
SCRIPTS = HERE / "client_scripts"
TIMEOUT_S = 600

CLIENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "openai-sync": (("openai",), ("try_openai_sync.py",)),
    "openai-asyncio": (("openai", "trio"), ("try_openai_async.py", "asyncio")),
    "openai-trio": (("openai", "trio"), ("try_openai_async.py", "trio")),
    "litellm": (("litellm",), ("try_litellm.py",)),
    "llm": (("llm",), ("try_llm.py",)),
    "langchain-openai": (("langchain-openai",), ("try_langchain.py",)),
    "openai-node": (("openai",), ("try_openai.mjs",)),
    "curl": ((), ("try_curl.sh",)),
}
"""The packages of each, and its script with arguments."""


def run(command: list[str], folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"STRATA_URL": url, "STRATA_FOLDER": str(folder)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def interpreter(packages: tuple[str, ...], script: str, folder: Path) -> list[str]:
    """What runs the script, installed with its packages if it isn't yet."""
    match Path(script).suffix:
        case ".sh":
            return ["sh"]
        case ".mjs":
            subprocess.run(["npm", "install", "--silent", "--no-fund", "--no-audit", *packages], cwd=folder, check=True)
            return ["node"]
    python = folder / "environment" / "bin" / "python"
    venv.create(python.parents[1], with_pip=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return [str(python)]


def one(name: str, url: str, folder: Path) -> dict[str, Any]:
    """What one client said; a client that cannot be installed or says nothing has failed."""
    packages, (script, *arguments) = CLIENTS[name]
    folder.mkdir()
    try:
        command = [*interpreter(packages, script, folder), str(SCRIPTS / script), *arguments]
        done = run(command, folder, url)
    except (OSError, subprocess.SubprocessError) as error:
        return {"version": None, "passed": [], "failed": {"start": str(error)}}
    lines = done.stdout.strip().splitlines()
    try:
        told: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return {"version": None, "passed": [], "failed": {"script": (done.stdout + done.stderr)[-3000:]}}
    return told


def served_model(url: str) -> str:
    with urllib.request.urlopen(url + "/v1/models", timeout=10) as answer:
        return str(json.load(answer)["data"][0]["id"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "clients.json")
    parser.add_argument("server_arguments", nargs="*", help="after --: more flags for strata serve")
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "command": shlex.join(["bench/clients.py", *sys.argv[1:]]),
        "machine": machine(),
        "system": platform.platform(terse=True),
        "strata": version("strata-serve"),
    }
    # Whoever ends this by a signal leaves nothing behind either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="strata-clients-"))
    try:
        with server("batch", arguments.server_arguments) as url:
            result["model"] = served_model(url)
            result["clients"] = {}
            for name in arguments.only:
                told = result["clients"][name] = one(name, url, folder / name)
                print(name, told["version"], "passed", *told["passed"], "FAILED" if told["failed"] else "", flush=True)
                for check, why in told["failed"].items():
                    print(f"-- {name}, {check}:\n{why}", flush=True)
    finally:
        shutil.rmtree(folder)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(1 if any(told["failed"] for told in result["clients"].values()) else 0)


if __name__ == "__main__":
    main()
