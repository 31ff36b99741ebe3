"""docs/operations.md says what is so: metrics, exit codes, flags and routes are the code's own."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import attrs
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from strata.cli.codes import CANT_START, ENGINE_DIED, INTERRUPTED, SIGNALLED
from strata.cli.serve import serve
from strata.config import Settings
from strata.http.admin import admin_routes
from strata.http.route import Edge
from strata.http.service import service_routes
from strata.metrics import Metrics, Snapshot
from strata.runtime import open_runtime
from strata.testing import ScriptedEngine

PAGE = (Path(__file__).parents[1] / "docs/operations.md").read_text(encoding="utf-8")
FULL = Snapshot(**{f.name: 1 if f.default is None else {"x": 1} for f in attrs.fields(Snapshot)})
"""With something in each of its fields, so that nothing is left out."""


def shown(family: Metric) -> str:
    """As it is scraped."""
    counts = family.type == "counter" or isinstance(family, CounterMetricFamily)
    return f"{family.name}_total" if counts else family.name


def test_it_explains_every_metric_and_no_other():
    metrics = Metrics("model")
    metrics.show(lambda: FULL)
    names = {shown(family) for family in metrics.registry.collect()}
    assert set(re.findall(r"`((?:strata_|vllm:)[a-z0-9_]+)`", PAGE)) == names


def test_it_explains_every_exit_code_and_no_other():
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert SIGNALLED + signal.SIGINT == INTERRUPTED
    told = {SIGNALLED + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    assert table == {0, CANT_START, ENGINE_DIED, *told}


def test_every_flag_and_variable_that_it_names_is_one_of_the_command_s():
    flags = {flag for parameter in serve.params for flag in parameter.opts}
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", PAGE))
    assert named <= flags, named - flags
    variables = {parameter.envvar for parameter in serve.params}
    assert set(re.findall(r"STRATA_[A-Z_]+", PAGE)) <= variables


def test_the_seconds_that_it_names_are_the_defaults():
    settings = Settings()
    assert f"`--comment-s` ({settings.serve.comment_s:g} s)" in PAGE
    assert f"`--keep-alive-s` ({settings.serve.keep_alive_s:g} s)" in PAGE
    assert f"--drain-timeout-s ({settings.serve.drain_timeout_s:g} s)" in PAGE


async def test_every_route_that_it_names_exists(autojump_clock):
    async with open_runtime(host=ScriptedEngine()) as runtime:
        edge = Edge.of(runtime, None)
        rules = {f"{route.method} {route.rule}" for route in [*admin_routes(edge), *service_routes(edge)]}
    assert set(re.findall(r"(?:POST|GET) /[a-z/]+", PAGE)) <= rules
