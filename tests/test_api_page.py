"""docs/api.md says what is so: its routes, fields and errors are the code's own."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from strata.cli.serve import serve
from strata.http.app import create_app
from strata.http.errors import TABLE
from strata.http.protocols import MAX_DROPPED_BYTES, MAX_PIPELINED_BYTES
from strata.http.schema import ChatBody
from strata.runtime import open_runtime
from strata.testing import ScriptedEngine

PAGE = (Path(__file__).parents[1] / "docs/api.md").read_text(encoding="utf-8")


async def test_it_has_every_route_and_no_other(autojump_clock):
    async with open_runtime(host=ScriptedEngine()) as runtime:
        rules = list(create_app(runtime).url_map.iter_rules())
    served = {
        f"{method} {re.sub(r'<(?:path:)?name>', '{name}', rule.rule)}"
        for rule in rules
        for method in (rule.methods or set()) & {"GET", "POST"}
    }
    assert set(re.findall(r"`((?:GET|POST) /[^`]*)`", PAGE)) == served - {"GET /static/<path:filename>"}


def test_it_names_every_field_of_a_chat():
    fields = {field.encode_name for field in msgspec.structs.fields(ChatBody)}
    assert not {name for name in fields if f"`{name}`" not in PAGE}


def test_it_has_the_status_and_type_of_every_error():
    table = re.findall(r"^\| ([\d, ]+) \| (.+?) \|", PAGE, re.MULTILINE)
    said = {
        (int(status), kind)
        for statuses, kinds in table
        for status in statuses.split(", ")
        for kind in re.findall(r"`(\w+)`", kinds)
    }
    assert {(row.status, row.type) for row in TABLE.values()} <= said


def test_the_flags_that_it_names_are_the_server_s():
    flags = {flag for parameter in serve.params for flag in parameter.opts}
    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", PAGE)) <= flags


def test_the_bounds_on_what_is_pipelined_are_those_that_are_held():
    assert f"At most {MAX_PIPELINED_BYTES // 1024} KiB are held" in PAGE
    assert MAX_DROPPED_BYTES == 2**20
    assert "Behind a further MiB" in PAGE
