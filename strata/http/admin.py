"""The actors, for whoever runs the server: the tree, one actor's history, and its cancelling.  Shows no text."""

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
