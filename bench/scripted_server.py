#!/usr/bin/env python3
"""A server whose engine is scripted: what is measured or tried against it is the edge and the actors, not a model.

Prints its address, serves until its standard input ends, and is gone then, whatever became of who started it.

    bench/scripted_server.py --step-s 0.02 --set max_running=128 --set max_queued=32
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from functools import partial
from typing import Any

import trio

from strata.config import Settings
from strata.http import access_lines, create_app, serve, to_logger
from strata.messages import Open
from strata.runtime import Runtime, open_runtime
from strata.testing import Script, ScriptedEngine
from strata.testing.language import END
from strata.testing.script import letters


def answers_of(length: int | None) -> Script:
    """Everybody's answer ends by itself after so many tokens; None: by `max_tokens` alone."""

    def token(opened: Open, index: int) -> int:
        return END if index >= (length or math.inf) else letters(opened, index)

    return Script(otherwise=token)


async def until_standard_input_ends() -> None:
    async with trio.lowlevel.FdStream(0) as stream:
        async for _ in stream:
            pass


async def main(arguments: argparse.Namespace) -> None:
    engine = ScriptedEngine(
        script=answers_of(arguments.answer_tokens),
        pages=arguments.pages,
        context=arguments.context,
        slice_s=arguments.slice_s,
        step_s=arguments.step_s,
    )
    settings = Settings.of(port=0, **named(arguments.set))
    async with open_runtime(host=engine, settings=settings) as runtime:
        await serve_until(runtime, until_standard_input_ends, access_log=arguments.access_log)


async def serve_until(runtime: Runtime, ended: Any, *, access_log: bool) -> None:
    on_access = access_lines(to_logger) if access_log else None
    serving = partial(
        serve, create_app(runtime), runtime.settings.serve, shutdown_trigger=ended, on_access=on_access
    )
    async with trio.open_nursery() as nursery:
        (address, *_) = await nursery.start(serving)
        print(address, flush=True)


def named(pairs: list[str]) -> dict[str, Any]:
    """Settings as `name=value`, the value as JSON where it is some."""
    found = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--answer-tokens", type=int, help="an answer's length; without it max_tokens alone ends it")
    parser.add_argument("--pages", type=int, default=64, help="of 64 tokens")
    parser.add_argument("--context", type=int, help="tokens; without it what the pages hold")
    parser.add_argument("--slice-s", type=float, default=0.001)
    parser.add_argument("--step-s", type=float, default=0.001)
    parser.add_argument("--access-log", action="store_true", help="one line a request on standard error")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the server")
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.INFO)
    trio.run(main, parsed())
