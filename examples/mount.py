"""Strata's routes in a Quart-Trio application of your own.

    python examples/mount.py            # or with --port 8001
    curl http://127.0.0.1:8000/
    curl http://127.0.0.1:8000/ai/v1/chat/completions -H 'Content-Type: application/json' \\
      -d '{"messages": [{"role": "user", "content": "Say hello."}], "stream": true}'

The server runs in your nursery: nothing that a client does, and no request that fails, ends it.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

import trio
from quart_trio import QuartTrio

import strata
from strata.http import routes, serve


def make_app(runtime: strata.Runtime) -> QuartTrio:
    app = QuartTrio(__name__)
    # Everything of ours, under a prefix of yours: /ai/v1/chat/completions, /ai/metrics, ...
    app.register_blueprint(routes(runtime), url_prefix="/ai")

    @app.get("/")
    async def greeting() -> dict[str, str]:
        """A route of your own, which asks the model without HTTP in between."""
        question = [{"role": "user", "content": "Greet me in one short sentence."}]
        async with runtime.chat(question, max_tokens=40, temperature=0) as stream:
            return {"greeting": await stream.text()}

    return app


def first_of(group: BaseException) -> BaseException:
    """The first error that is no group."""
    return first_of(group.exceptions[0]) if isinstance(group, BaseExceptionGroup) else group


async def main(
    *, port: int = 8000, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED, **settings: Any
) -> None:
    async with strata.open_runtime(port=port, **settings) as runtime, trio.open_nursery() as nursery:
        addresses = await nursery.start(partial(serve, make_app(runtime), runtime.settings.serve))
        task_status.started(addresses[0])
        print(f"serving on {addresses[0]}")


def run(**named: Any) -> str | None:
    """Until it is interrupted, which is the way to end it.  One line that says what to do, where it can't start."""
    said: str | None = None
    try:
        trio.run(partial(main, **named))
    except* KeyboardInterrupt:
        pass
    except* strata.StrataError as group:  # no model, a port in use, ...
        said = f"mount.py: {first_of(group)}"
    return said


def flags(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description="Strata's routes in an application of your own.")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    return vars(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(run(**flags(sys.argv[1:])))
