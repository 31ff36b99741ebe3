"""The OpenAPI document is valid, and thousands of requests that are made from it are answered as it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import schemathesis
from api_call import call

from strata.http.app import create_app
from strata.runtime import open_runtime
from strata.testing import ScriptedEngine

RUN = Path(__file__).parents[2] / "bench" / "schemathesis_run.py"
CASES = 2000


async def test_the_document_is_valid_openapi(autojump_clock):
    async with open_runtime(host=ScriptedEngine()) as runtime:
        told = (await call(create_app(runtime), "GET", "/openapi.json")).json
    schemathesis.openapi.from_dict(told).validate()


def test_two_thousand_requests_made_from_the_document_are_answered_as_it_says(tmp_path):
    """B60: no 5xx, no connection cut, each body and event by its schema, and a refusal for what breaks the rules."""
    out = tmp_path / "result.json"
    # Two rounds of this size make a few more cases than are asked for.
    command = [sys.executable, str(RUN), "--cases", str(CASES), "--examples", "400", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    told = json.loads(out.read_text()) if out.exists() else {}
    assert done.returncode == 0, told.get("output_of_failed") or done.stdout + done.stderr
    assert told["failures"] == told["errors"] == []
    assert told["cases"]["generated"] >= CASES
    assert told["fitting_by_operation"]["POST /v1/chat/completions"] > CASES / 3
