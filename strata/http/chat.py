"""`POST /v1/chat/completions`: reads the body, holds the request, and tells its answer whole or as a stream.

The block of `runtime.submit` is all the cleaning up there is: whatever ends this code withdraws the request.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Final

import msgspec
import trio
from quart import Response, request
from quart_trio.wrappers import TrioResponse

from strata.errors import ModelNotFound
from strata.http.answer import AnswerMessage, ChatAnswer, Choice, Chunk, logprobs_of, timings_of, usage_of
from strata.http.asked import PRIORITY_HEADER, Asked, asked, header_priority
from strata.http.body import BodyDecoder
from strata.http.errors import BodyTooLarge
from strata.http.pump import PumpResponse, Writer
from strata.http.route import Edge, Route, current_visit, encoded_response, note, refused
from strata.http.schema import ChatBody, StrictChatBody
from strata.http.security import Access
from strata.http.sse import Events, comment, error_event
from strata.http.visit import Visit
from strata.messages import Delta, Figures, Request, Summary
from strata.runtime import ModelInfo, Runtime, Stream

FIRST_COMMENT_S: Final = 1.0
PROGRESS_S: Final = 1.0
"""How often `return_progress` tells, and the longest that a client then waits for a sign."""


def chat_routes(edge: Edge) -> list[Route]:
    chat = Chat(edge)
    return [
        Route(
            method="POST",
            rule="/v1/chat/completions",
            view=chat.completions,
            access=Access.USE,
            summary="Answer a chat, whole or as a stream of events",
            body=ChatBody,
            answer=ChatAnswer,
            events=Chunk,
            errors=(400, 404, 408, 409, 413, 429, 500, 503),
        )
    ]


class Chat:
    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        kind = StrictChatBody if edge.settings.strict_fields else ChatBody
        self._decoder: BodyDecoder[ChatBody] = BodyDecoder(kind, edge.threads)

    async def completions(self) -> Response:
        visit = current_visit()
        wish = self._asked(await self._body(), visit)
        must_serve(self._edge.runtime.model, wish.request.model)
        visit.stream = wish.stream
        if wish.stream:
            return PumpResponse(Telling(self._edge.runtime, wish, visit, self._edge.settings.comment_s).pump)
        return await whole(self._edge, wish, visit)

    async def _body(self) -> ChatBody:
        # Not kept: the bytes would otherwise live as long as the answer.
        data = await request.get_data(cache=False, as_text=False, parse_form_data=False)
        if len(data) > self._edge.settings.max_body_mib * 1024 * 1024:
            raise BodyTooLarge("the body is larger than this server takes")
        return await self._decoder.decode(data)

    def _asked(self, body: ChatBody, visit: Visit) -> Asked:
        admin = self._edge.keys.is_admin(request.headers.get("Authorization"))
        return asked(
            body,
            request_id=visit.request_id,
            priority=header_priority(request.headers.get(PRIORITY_HEADER)),
            max_priority=100 if admin else self._edge.runtime.settings.requests.max_priority,
        )


def must_serve(model: ModelInfo, name: str) -> None:
    """Raises ModelNotFound."""
    if name not in (model.id, "default", *model.aliases):
        raise ModelNotFound(name)


async def whole(edge: Edge, wish: Asked, visit: Visit) -> Response:
    """The answer in one piece."""
    deltas: list[Delta] = []
    async with edge.runtime.submit(wish.request, max_priority=wish.max_priority) as stream:
        visit.actor = stream.id
        try:
            while stream.summary is None:
                deltas += [item for item in await stream.batch() if isinstance(item, Delta)]
        finally:
            visit.figures = stream.figures()
    visit.finish_reason = stream.summary.finish_reason
    if wish.request.logprobs is None:
        return encoded_response(encode_answer(edge.runtime.model.id, deltas, stream.summary, logprobs=False))
    # Twenty alternatives a token add up to tens of milliseconds.
    body = await trio.to_thread.run_sync(
        lambda summary: encode_answer(edge.runtime.model.id, deltas, summary, logprobs=True),
        stream.summary,
        limiter=edge.threads,
        abandon_on_cancel=True,
    )
    return encoded_response(body)


def encode_answer(model: str, deltas: list[Delta], summary: Summary, *, logprobs: bool) -> bytes:
    told = logprobs_of(token for delta in deltas for token in delta.logprobs) if logprobs else None
    message = AnswerMessage(content="".join(delta.text for delta in deltas))
    return msgspec.json.encode(
        ChatAnswer(
            id=new_id(),
            created=int(time.time()),
            model=model,
            choices=[Choice(message=message, finish_reason=summary.finish_reason, logprobs=told)],
            usage=usage_of(summary.figures),
            timings=timings_of(summary.figures),
        )
    )


class Telling:
    """One streamed answer.

    The status line goes out with the first bytes, so until then an error is a real status; after that it is an event,
    and the stream ends there.
    """

    __slots__ = (
        "_answering",
        "_begun",
        "_comment_s",
        "_due",
        "_events",
        "_max_priority",
        "_progress",
        "_request",
        "_role_told",
        "_runtime",
        "_visit",
    )

    def __init__(self, runtime: Runtime, wish: Asked, visit: Visit, comment_s: float) -> None:
        self._runtime, self._visit, self._comment_s = runtime, visit, comment_s
        self._request: Request | None = wish.request
        self._max_priority, self._progress = wish.max_priority, wish.return_progress
        self._events = Events(
            id=new_id(), created=int(time.time()), model=runtime.model.id, include_usage=wish.include_usage
        )
        self._begun = False
        self._role_told = False
        self._answering = False
        self._due = math.inf

    async def pump(self, write: Writer) -> TrioResponse | None:
        """Its body.  The response that takes its place, where it failed before anything was written."""
        try:
            async with self._submit() as stream:
                self._visit.actor = stream.id
                try:
                    await self._tell(stream, write)
                finally:
                    self._visit.figures = stream.figures()
        except Exception as error:
            return await self._fail(error, write)
        return None

    def _submit(self) -> AbstractAsyncContextManager[Stream]:
        # Handed over, not kept: its messages may be long.
        request, self._request = self._request, None
        assert request is not None
        return self._runtime.submit(request, max_priority=self._max_priority)

    async def _tell(self, stream: Stream, write: Writer) -> None:
        self._due = trio.current_time() + min(FIRST_COMMENT_S, self._comment_s)
        while True:
            rest: Awaitable[None] | None = None
            # Not a deadline for each batch, nor one moved by each: that would cost more than the rest of an event.
            with trio.CancelScope(deadline=self._due) as patience:
                while True:
                    rest = self._give(write, self._said(await stream.batch()))
                    if rest is not None or stream.summary is not None:
                        break
            # Here, where no patience of ours cuts a write.
            if rest is not None:
                await rest
                self._due = trio.current_time() + self._patience()
            elif patience.cancelled_caught and trio.current_time() >= self._due:
                await self._write(write, self._standing(stream.figures()))
            if stream.summary is not None:
                self._visit.finish_reason = stream.summary.finish_reason
                return

    def _give(self, write: Writer, data: bytes) -> Awaitable[None] | None:
        self._begun = True
        self._due = trio.current_time() + self._patience()
        return write.at_once(data)

    def _patience(self) -> float:
        waits = self._progress and not self._answering
        return min(PROGRESS_S, self._comment_s) if waits else self._comment_s

    def _said(self, batch: list[Delta | Summary]) -> bytes:
        self._answering = True
        # All that is ready is one write.
        pieces = [self._events.delta(item) if isinstance(item, Delta) else self._events.last(item) for item in batch]
        return self._role() + b"".join(pieces)

    def _standing(self, figures: Figures) -> bytes:
        if self._progress and not self._answering:
            return self._role() + self._events.progress(figures)
        return comment(figures)

    def _role(self) -> bytes:
        """The first event, once."""
        told, self._role_told = self._role_told, True
        return b"" if told else self._events.first()

    async def _fail(self, error: Exception, write: Writer) -> TrioResponse | None:
        if self._begun:
            await write(error_event(note(error, self._visit).encode()))
            return None
        await trio.lowlevel.checkpoint()
        return refused(error, self._visit)

    async def _write(self, write: Writer, data: bytes) -> None:
        self._begun = True
        await write(data)
        self._due = trio.current_time() + self._patience()


def new_id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex}"
