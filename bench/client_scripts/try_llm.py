"""The command `llm`, with a model of ours in its own file of further models."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import BASE, MODEL, TOKENS, TOO_MANY, Checks

FOLDER = Path(tempfile.mkdtemp(dir=os.environ["STRATA_FOLDER"]))
(FOLDER / "extra-openai-models.yaml").write_text(
    f"- model_id: strata\n  model_name: {MODEL}\n  api_base: {BASE}\n  can_stream: true\n"
)


def llm(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("llm")), *arguments]
    environment = os.environ | {"LLM_USER_PATH": str(FOLDER)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def answered(*arguments: str) -> None:
    done = llm("-m", "strata", "Say hello.", "-o", "max_tokens", str(TOKENS), *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), done


def whole() -> None:
    answered("--no-stream")


def stream() -> None:
    answered()


def error() -> None:
    done = llm("-m", "strata", "Say hello.", "-o", "max_tokens", str(TOO_MANY))
    assert done.returncode == 1, done
    assert "max_tokens" in done.stderr, done.stderr


checks = Checks("llm")
for check in (whole, stream, error):
    checks.run(check.__name__, check)
checks.report()
