"""A runtime on a thread of its own, for a program whose main thread waits for a person.

The terminal's line editor and Ctrl-C belong to the main thread; the runtime goes on meanwhile.  Knows no terminal.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeAlias

import trio
from attrs import frozen

from strata.errors import EngineUnavailable
from strata.messages import Summary
from strata.runtime import ModelInfo, Runtime

Piece: TypeAlias = str | Summary | BaseException | None
"""Of an answer: text, how it ended, what went wrong; None is its end."""


@frozen(eq=False)
class _Question:
    messages: tuple[Mapping[str, str], ...]
    named: Mapping[str, Any]
    answer: queue.SimpleQueue[Piece]
    scope: trio.CancelScope


class Background:
    """Entering opens the runtime and waits until it serves; raises what it can't start for.  Leaving ends it."""

    def __init__(self, runtime: AbstractAsyncContextManager[Runtime]) -> None:
        self.model: ModelInfo
        self._opening = runtime
        self._started: queue.SimpleQueue[ModelInfo | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="strata-runtime", daemon=True)
        self._token: trio.lowlevel.TrioToken
        self._ask: trio.MemorySendChannel[_Question]

    def __enter__(self) -> Background:
        self._thread.start()
        came = self._started.get()
        if isinstance(came, BaseException):
            self._thread.join()
            raise came
        self.model = came
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._token.run_sync_soon(self._ask.close)
        self._thread.join()

    def ask(self, messages: Sequence[Mapping[str, str]], **named: Any) -> Answer:
        """Begin an answer; `named` are the request's other fields.  Raises EngineUnavailable of an ended runtime."""
        if not self._thread.is_alive():
            raise EngineUnavailable("the runtime has ended")
        question = _Question(tuple(messages), named, queue.SimpleQueue(), trio.CancelScope())
        self._token.run_sync_soon(self._ask.send_nowait, question)
        return Answer(question, self._token)

    # -- the runtime's thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:
            # Once it serves, what went wrong is said in the answers.
            self._started.put(error)

    async def _live(self) -> None:
        async with self._opening as runtime:
            self._ask, questions = trio.open_memory_channel[_Question](1)
            self._token = trio.lowlevel.current_trio_token()
            self._started.put(runtime.model)
            async for question in questions:
                await _answer(runtime, question)


class Answer:
    """What comes of a question, to be read in another thread than the runtime's."""

    def __init__(self, question: _Question, token: trio.lowlevel.TrioToken) -> None:
        self.summary: Summary | None = None
        """How it ended; None while it goes on, and of one that was stopped."""
        self._question = question
        self._token = token

    def __iter__(self) -> Iterator[str]:
        """The text as it comes.  Raises what the request failed with."""
        while (piece := self._question.answer.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            if isinstance(piece, Summary):
                self.summary = piece
            else:
                yield piece

    def stop(self) -> None:
        """Withdraw it.  What was written may be read to its end."""
        self._token.run_sync_soon(self._question.scope.cancel)


async def _answer(runtime: Runtime, question: _Question) -> None:
    """Write the answer into its queue; the last word is always None."""
    put = question.answer.put
    try:
        with question.scope:
            async with runtime.chat(question.messages, **question.named) as stream:
                async for delta in stream:
                    put(delta.text)
            put(stream.summary)
    except Exception as error:
        put(error)
    finally:
        put(None)
    await trio.lowlevel.checkpoint()
