"""For whoever runs the server: the actors, one's history and cancelling; drain, and another engine.  Shows no text."""

from __future__ import annotations

import trio
from msgspec import Struct
from quart import Response

from strata.http.route import Edge, Route, json_response
from strata.http.security import Access
from strata.runtime import ActorDetail, ActorInfo


class ActorTree(Struct, frozen=True):
    actors: tuple[ActorInfo, ...]


class CancelAnswer(Struct, frozen=True):
    id: str
    cancelled: bool


class DrainAnswer(Struct, frozen=True):
    draining: bool
    started: int
    """Requests that may still end, parked ones too; those that were queued have had their error."""


class RestartAnswer(Struct, frozen=True):
    restarting: bool
    begun: bool
    """By this call.  False: another engine is coming already, and this call changed nothing."""
    incarnation: int | None
    """Of the last engine that was ready: the one that ends, or has ended."""


def admin_routes(edge: Edge) -> list[Route]:
    admin = Admin(edge)
    return [
        Route(
            method="GET",
            rule="/admin/actors",
            view=admin.tree,
            access=Access.ADMIN,
            summary="Every actor there is now",
            answer=ActorTree,
        ),
        Route(
            method="GET",
            rule="/admin/actors/<name>",
            view=admin.actor,
            access=Access.ADMIN,
            summary="One actor, or a request that has ended lately: history and figures",
            answer=ActorDetail,
            errors=(404,),
        ),
        Route(
            method="POST",
            rule="/admin/actors/<name>/cancel",
            view=admin.cancel,
            access=Access.ADMIN,
            summary="Withdraw a request",
            answer=CancelAnswer,
            errors=(404, 409),
        ),
        Route(
            method="POST",
            rule="/admin/drain",
            view=admin.drain,
            access=Access.ADMIN,
            summary="Take no more requests and let those end that have started; the server stays",
            answer=DrainAnswer,
        ),
        Route(
            method="POST",
            rule="/admin/engine/restart",
            view=admin.restart,
            access=Access.ADMIN,
            summary="End the engine and start another; what it holds ends or is replayed",
            answer=RestartAnswer,
            errors=(503,),
        ),
    ]


class Admin:
    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def tree(self) -> Response:
        await trio.lowlevel.checkpoint()
        return json_response(ActorTree(self._edge.runtime.tree()))

    async def actor(self, name: str) -> Response:
        await trio.lowlevel.checkpoint()
        return json_response(self._edge.runtime.actor(name))

    async def cancel(self, name: str) -> Response:
        await trio.lowlevel.checkpoint()
        self._edge.runtime.cancel(name)
        return json_response(CancelAnswer(name, True))

    async def drain(self) -> Response:
        await trio.lowlevel.checkpoint()
        runtime = self._edge.runtime
        runtime.drain()
        return json_response(DrainAnswer(True, runtime.statistics().started))

    async def restart(self) -> Response:
        await trio.lowlevel.checkpoint()
        runtime = self._edge.runtime
        incarnation = runtime.health().incarnation
        begun = runtime.restart_engine()
        return json_response(RestartAnswer(True, begun, incarnation))
