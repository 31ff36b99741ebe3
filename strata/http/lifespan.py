"""What an app does before its first request and after its last, over ASGI's lifespan messages.  Knows no sockets."""

from __future__ import annotations

from typing import Any

import trio

from strata.errors import StartError
from strata.http.errors import as_internal, leaf
from strata.http.exchange import App


class Lifespan:
    """`await nursery.start(lifespan.run)` returns when the app is ready; after `over.set()`, `run` ends."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.over = trio.Event()
        self._asked = False
        self._started = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Raises StartError where the app can't start.  An app without a lifespan just has none."""
        self._task_status = task_status
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        try:
            await self._app(scope, self._receive, self._send)
        except (Exception, BaseExceptionGroup) as error:
            reason = leaf(error)
            if isinstance(reason, StartError):
                raise reason from None
            if not isinstance(reason, Exception):
                raise
            if self._started:
                as_internal(reason)
        if not self._started:
            self._task_status.started()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _receive(self) -> dict[str, Any]:
        if self._asked:
            await self.over.wait()
            return {"type": "lifespan.shutdown"}
        self._asked = True
        await trio.lowlevel.checkpoint()
        return {"type": "lifespan.startup"}

    async def _send(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "lifespan.startup.complete":
                self._started = True
                self._task_status.started()
            case "lifespan.startup.failed":
                raise StartError(f"the app could not start: {message.get('message', '')}")
        await trio.lowlevel.checkpoint()
