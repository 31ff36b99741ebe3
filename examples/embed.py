"""Strata inside a program of your own: two chats at once in your own nursery, a long one and a short one.

    python examples/embed.py [MODEL.gguf]

The long one is asked first.  The short one does not wait for it: it starts within one slice of the long one's prompt,
and both answers come as they are written.  Without an argument the default model is used (`strata pull` fetches it).
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import trio

import strata

LONG = "Here is a diary.\n" + "On this day nothing much happened, and it rained.\n" * 40 + "What happened?"
SHORT = "What is the capital of France?"


async def ask(runtime: strata.Runtime, name: str, question: str) -> None:
    started = trio.current_time()
    async with runtime.chat([{"role": "user", "content": question}], max_tokens=24, temperature=0) as stream:
        async for delta in stream:
            if delta.text:
                print(f"{trio.current_time() - started:6.2f} s  {name}: {delta.text!r}")
    assert stream.summary is not None
    figures = stream.summary.figures
    print(f"{name}: {figures.prompt_tokens} tokens read, {figures.written_tokens} written, parked {figures.parks}")


async def main(model: str | None = None, **named: Any) -> None:
    """`named` go to `open_runtime`."""
    async with strata.open_runtime(model, **named) as runtime, trio.open_nursery() as nursery:
        nursery.start_soon(ask, runtime, "long", LONG)
        await trio.sleep(0.1)
        nursery.start_soon(ask, runtime, "short", SHORT)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        trio.run(main, *sys.argv[1:2])
