"""What dashboards, gateways and health checks ask: models, health, metrics.  Nothing here waits for the engine."""

from __future__ import annotations

import trio
from msgspec import Struct
from prometheus_client.exposition import choose_encoder
from quart import Response, request

from strata.http.chat import must_serve
from strata.http.route import Edge, Route, encoded_response, json_response
from strata.http.security import Access
from strata.runtime import ModelInfo

RETRY_READY_S = 1


class ModelMeta(Struct, frozen=True):
    context: int
    """The longest sequence (tokens), prompt and answer together."""
    size: int | None
    """Of the file, in bytes."""
    quantisation: str | None
    architecture: str | None


class ModelEntry(Struct, frozen=True, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "strata"
    aliases: list[str]
    max_model_len: int
    """`meta.context`, under the name by which vLLM's clients look for it."""
    meta: ModelMeta


class ModelList(Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[ModelEntry]


class HealthAnswer(Struct, frozen=True):
    status: str
    """`ok`: the loop answers."""
    state: str
    """`loading`, `ready`, `restarting`, `draining` or `failed`."""
    reason: str
    incarnation: int | None
    """Of the engine, counted from 1; while another is being started, of the last; none before the first."""


def service_routes(edge: Edge) -> list[Route]:
    service = Service(edge)
    return [
        Route(
            method="GET",
            rule="/v1/models",
            view=service.models,
            access=Access.USE,
            summary="The model that is served",
            answer=ModelList,
        ),
        Route(
            method="GET",
            rule="/v1/models/<path:name>",
            view=service.model,
            access=Access.USE,
            summary="The model, by its name or an alias",
            answer=ModelEntry,
            errors=(404,),
        ),
        Route(
            method="GET",
            rule="/health",
            view=service.health,
            access=Access.OPEN,
            summary="Whether the server answers at all; 200 also where the engine is dead",
            answer=HealthAnswer,
        ),
        Route(
            method="GET",
            rule="/ready",
            view=service.ready,
            access=Access.OPEN,
            summary="Whether requests are taken: 200, or 503 and why",
            answer=HealthAnswer,
            errors=(503,),
        ),
        Route(
            method="GET",
            rule="/metrics",
            view=service.metrics,
            access=Access.USE,
            summary="Figures for Prometheus",
        ),
    ]


class Service:
    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def models(self) -> Response:
        await trio.lowlevel.checkpoint()
        return json_response(ModelList(data=[entry_of(self._edge.runtime.model)]))

    async def model(self, name: str) -> Response:
        await trio.lowlevel.checkpoint()
        must_serve(self._edge.runtime.model, name)
        return json_response(entry_of(self._edge.runtime.model))

    async def health(self) -> Response:
        await trio.lowlevel.checkpoint()
        return json_response(self._health("ok"))

    async def ready(self) -> Response:
        await trio.lowlevel.checkpoint()
        if self._edge.arriving.health().ready:
            return json_response(self._health("ok"))
        response = json_response(self._health("unavailable"), 503)
        response.headers["Retry-After"] = str(RETRY_READY_S)
        return response

    async def metrics(self) -> Response:
        await trio.lowlevel.checkpoint()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return encoded_response(encode(self._edge.runtime.registry), content_type=content_type)

    def _health(self, status: str) -> HealthAnswer:
        health = self._edge.arriving.health()
        return HealthAnswer(status, health.state, health.reason, health.incarnation)


def entry_of(model: ModelInfo) -> ModelEntry:
    return ModelEntry(
        id=model.id,
        created=model.created,
        aliases=list(model.aliases),
        max_model_len=model.context,
        meta=ModelMeta(model.context, model.size_bytes, model.quantisation, model.architecture),
    )
