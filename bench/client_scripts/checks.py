"""What the scripts beside this one share: named checks, and their result as one JSON line."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

URL = os.environ["STRATA_URL"]
BASE = f"{URL}/v1"
MODEL = "default"
QUESTION: list[Any] = [{"role": "user", "content": "Say hello."}]
TOKENS = 8
TOO_MANY = 1_000_000
"""More than any context has: refused with 400, whose `param` is `max_tokens`."""


class Checks:
    """Runs what it is given, one by one, and goes on after a failure."""

    def __init__(self, package: str) -> None:
        self._told: dict[str, Any] = {"version": version(package), "passed": [], "failed": {}}

    def run(self, name: str, check: Callable[[], Any]) -> None:
        try:
            check()
        except BaseException:
            self._told["failed"][name] = traceback.format_exc()[-3000:]
        else:
            self._told["passed"].append(name)

    def report(self) -> None:
        print(json.dumps(self._told), flush=True)


def refused(call: Callable[[], Any], kind: type[BaseException]) -> BaseException:
    """The error of this type that the call must end with."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"it was not refused with {kind.__name__}")
