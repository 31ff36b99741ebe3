"""Opens everything, and is all that the edge and an embedding program see.

The nesting of its supervisors is the order of shutdown: requests, then the dispatcher, then the engine.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import trio
from attrs import evolve, frozen
from prometheus_client import CollectorRegistry

from strata.actors.dispatcher import Dispatcher, Drain
from strata.actors.inspection import ActorDetail, ActorInfo, Change, Inspection
from strata.actors.keeper import EngineKeeper, Hosts
from strata.actors.kernel import ActorInfo as KernelInfo
from strata.actors.kernel import Registry, Supervisor, lone, open_supervisor
from strata.actors.prompt import Language
from strata.actors.request import NOTHING_YET, RequestActor, Submission
from strata.actors.stream import Stream
from strata.actors.voice import ModelInfo, Voice, find_file, heard, name_of_voice, own_voice
from strata.config import Settings
from strata.engine.host import EngineHost
from strata.engine.make_host import make_host
from strata.errors import (
    AlreadyDone,
    EngineUnavailable,
    InternalError,
    ShuttingDown,
    StartError,
    UnknownRequest,
    frames_of,
    new_error_id,
)
from strata.messages import ChatMessage, Ended, Failed, Ready, Request, Seq
from strata.metrics import Metrics, Snapshot
from strata.models.file import OpenedOnce
from strata.scheduling.decision import Statistics as Scheduled

__all__ = [
    "ActorDetail",
    "ActorInfo",
    "Change",
    "Health",
    "ModelInfo",
    "Runtime",
    "Statistics",
    "Stream",
    "open_runtime",
]

log = logging.getLogger("strata")

ROOT: Final = "runtime"
"""The id under which the tree shows the runtime itself."""
TOKENISERS: Final = 8
"""Prompts that are tokenised at once, so that short ones do not stand behind a few that take a second."""


@frozen
class Health:
    state: Literal["loading", "ready", "restarting", "draining", "failed"]
    """`loading` is what a server says that serves already while its runtime is being opened."""
    reason: str = ""
    incarnation: int | None = None
    """Of the engine, counted from 1; while another is being started, of the last."""

    @property
    def ready(self) -> bool:
        return self.state == "ready"


@frozen(kw_only=True)
class Statistics:
    """Counts at one moment."""

    queued: int
    reading: int
    parked: int
    decoding: int
    pages_free: int
    """Nobody holds them, though some may still hold the beginning of a prompt."""
    pages_held: int
    ended: int
    """Requests that were queued and have ended since the start, whatever their outcome."""
    started: int
    """Requests that have started and not ended; also while they are queued again to be replayed."""


class Failure:
    """Why a runtime can serve no more, once it can't."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._happened = trio.Event()

    def say(self, reason: str) -> None:
        """The first reason counts."""
        if self.reason is None:
            self.reason = reason
            self._happened.set()

    async def wait(self) -> str:
        await self._happened.wait()
        return self.reason or ""


class Runtime:
    """A model that answers.  Made by `open_runtime`; good until its block is left."""

    def __init__(
        self,
        *,
        model: ModelInfo,
        language: Language,
        settings: Settings,
        actors: Registry,
        requests: Supervisor,
        dispatcher: Dispatcher,
        keeper: EngineKeeper,
        metrics: Metrics,
        failure: Failure,
    ) -> None:
        self.model = model
        self.settings = settings
        self.registry: CollectorRegistry = metrics.registry
        """This runtime's metrics; no two runtimes share one."""
        self._language = language
        self._actors = actors
        self._requests = requests
        self._dispatcher = dispatcher
        self._keeper = keeper
        self._metrics = metrics
        self._failure = failure
        self._inspection = Inspection(actors, dispatcher)
        self._tokenisers = trio.CapacityLimiter(TOKENISERS)
        self._submitted = 0
        self._draining: Literal["drain", "shutdown"] | None = None

    def __repr__(self) -> str:
        return f"<Runtime {self.model.id}, {self.health().state}, {sum(1 for _ in self._living())} requests>"

    # -- asking ------------------------------------------------------------------------------------------------------

    def submit(self, request: Request, *, max_priority: int | None = None) -> AbstractAsyncContextManager[Stream]:
        """Ask for an answer.  Entering has it checked, tokenised and queued; leaving, for any reason, withdraws it.

        When the block is left nothing of the request holds a page.  `max_priority`: the highest that it may ask for;
        None: what the settings say.  Entering raises InvalidRequest and its kinds, Overloaded, EngineUnavailable,
        ShuttingDown, InternalError.
        """
        return Submission(partial(self._arrive, request, max_priority))

    def chat(self, messages: Sequence[Mapping[str, Any]], **named: Any) -> AbstractAsyncContextManager[Stream]:
        """`submit` for messages as mappings (`role`, `content`); `named` are Request's other fields.

        `stop` may be one string, and `logit_bias` a mapping.
        """
        return self.submit(Request(messages=_as_messages(messages), **_as_fields(named)))

    def cancel(self, id: str, by: str = "admin") -> None:
        """Withdraw a request; its reader gets RequestCancelled.  Raises UnknownRequest, AlreadyDone."""
        actor = self._actors.find(id) if id in self._actors else None
        if actor is not None and not isinstance(actor, RequestActor):
            raise UnknownRequest(f"{id} is no request")
        if actor is None or actor.seq in self._dispatcher.past or actor.over:
            self._inspection.actor(id)
            raise AlreadyDone(f"{id} has ended already")
        actor.withdraw(by)

    # -- looking -----------------------------------------------------------------------------------------------------

    def health(self) -> Health:
        state, reason = self._state()
        ready = self._dispatcher.ready
        return Health(state, reason, None if ready is None else ready.incarnation)

    def tree(self) -> tuple[ActorInfo, ...]:
        """Every actor there is now, each after its parent; the first is the runtime itself."""
        return self._inspection.tree(root=ROOT, state=self.health().state)

    def actor(self, id: str) -> ActorDetail:
        """One actor, or one of the last requests that ended.  Raises UnknownRequest."""
        return self._inspection.actor(id)

    def statistics(self) -> Statistics:
        now = self._dispatcher.statistics()
        states, ended, started = _by_state(now.states), sum(now.ended.values()), self._dispatcher.started
        return Statistics(**states, pages_free=now.pages_free, pages_held=now.pages_held, ended=ended, started=started)

    def snapshot(self) -> Snapshot:
        """What the metrics show of this moment."""
        now = self._dispatcher.statistics()
        depths: dict[str, int] = {}
        for info in self._actors.tree():
            depths[info.kind] = depths.get(info.kind, 0) + info.depth
        return Snapshot(
            requests=_by_state(now.states),
            queued_for_s=now.queued_for_s,
            pages={
                "free": now.pages_free - now.pages_cached,
                "cached": now.pages_cached,
                "held": now.pages_held - now.pages_moving,
                "swapping": now.pages_moving,
            },
            slots={"free": now.slots_free, "used": now.slots_total - now.slots_free} if now.slots_total else {},
            moved={"out": now.pages_out, "in": now.pages_in},
            parked_bytes=self._parked_bytes(now),
            parks=now.parks,
            resumes=now.resumes,
            workspaces={"used": now.half_read, "free": now.workspaces - now.half_read},
            mailboxes=depths,
            tasks=trio.lowlevel.current_statistics().tasks_living,
            incarnation=self.health().incarnation,
            engine_restarts=self._keeper.restarts,
        )

    # -- maintenance -------------------------------------------------------------------------------------------------

    def restart_engine(self) -> bool:
        """End the engine and start another: its memory is freed, the model loaded again.  Queued requests wait for it;
        what has started ends, or is replayed, as `on_engine_death` says.  A load that is under way is begun anew.

        False: nothing was done, for another engine is coming anyway: the one that is being replaced has not ended yet,
        or its successor is being loaded on a thread, which can't be cut short.  Raises EngineUnavailable where there
        can be no other.
        """
        return self._keeper.replace()

    # -- ending ------------------------------------------------------------------------------------------------------

    async def wait_failed(self) -> str:
        """Wait until the runtime can serve no more, and say why."""
        return await self._failure.wait()

    def drain(self, by: Literal["drain", "shutdown"] = "drain") -> None:
        """Admit nothing more, and end what is queued with ShuttingDown; what has started goes on.

        `by`: whether clients are told that the server drains, or that it ends.
        """
        self._draining = by
        self._dispatcher.ref.tell(Drain(by))

    async def wait_idle(self) -> None:
        """Wait until no request is left."""
        await trio.lowlevel.checkpoint()
        while (actor := next(self._living(), None)) is not None:
            await actor.wait_ended()

    async def close(self) -> None:
        """Withdraw all that is left, with ShuttingDown, and wait until nothing of it is."""
        self.drain("shutdown")
        for actor in self._living():
            actor.withdraw(by="shutdown")
        await self.wait_idle()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _state(self) -> tuple[Literal["ready", "restarting", "draining", "failed"], str]:
        if self._failure.reason is not None:
            return "failed", self._failure.reason
        if self._draining:
            return "draining", str(ShuttingDown.by(self._draining))
        if self._dispatcher.without is not None:
            return "restarting", f"{self._dispatcher.without}; another is being started"
        return "ready", ""

    def _arrive(self, request: Request, max_priority: int | None) -> RequestActor:
        arrived = trio.current_time()
        self._must_admit()
        self._submitted += 1
        settings = self.settings.requests
        if max_priority is not None:
            settings = evolve(settings, max_priority=max_priority)
        actor = RequestActor(
            Seq(self._submitted),
            request,
            arrived=arrived,
            language=self._language,
            settings=settings,
            limiter=self._tokenisers,
            dispatcher=self._dispatcher.ref,
            figures=self._dispatcher.figures,
            left=self._metrics.left,
        )
        self._requests.spawn(actor, on_failure=_told_already)
        return actor

    def _parked_bytes(self, now: Scheduled) -> dict[str, int]:
        """By where they lie; nothing where the engine doesn't say what a page takes."""
        ready = self._dispatcher.ready
        if ready is None or not ready.page_bytes:
            return {}
        slots = now.slots_total - now.slots_free
        return {"device": now.pages_parked * ready.page_bytes, "arena": slots * ready.page_bytes}

    def _must_admit(self) -> None:
        if self._failure.reason is not None:
            raise EngineUnavailable(self._failure.reason)
        if self._draining:
            raise ShuttingDown.by(self._draining)

    def _living(self) -> Iterator[RequestActor]:
        return (actor for actor in self._actors if isinstance(actor, RequestActor))


def _as_messages(messages: object) -> Any:
    """Mappings as messages; what is none stays as it is, and is refused with the rest of what can't be served."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return messages
    return tuple(_as_message(message) for message in messages)


def _as_message(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    get: Callable[[str], Any] = message.get
    return ChatMessage(get("role"), get("content"), get("name"))


def _as_fields(named: Mapping[str, Any]) -> dict[str, Any]:
    """Request's fields, without those that are None: they are not named."""
    fields = {name: value for name, value in named.items() if value is not None}
    if isinstance(stop := fields.get("stop"), str):
        fields["stop"] = (stop,)
    if isinstance(bias := fields.get("logit_bias"), Mapping):
        fields["logit_bias"] = tuple(bias.items())
    return fields


def _by_state(states: Mapping[str, int]) -> dict[str, int]:
    """How many there are in each of the states that people count by."""
    counts = dict.fromkeys(("queued", "reading", "parked", "decoding"), 0)
    for state, count in states.items():
        name = "parked" if state.startswith("parked") else str(state)
        if name in counts:
            counts[name] += count
    return counts


# -- opening ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_runtime(
    model: str | Path | None = None,
    *,
    settings: Settings | None = None,
    trace: Path | None = None,
    host: EngineHost | Hosts | None = None,
    **named: Any,
) -> AsyncIterator[Runtime]:
    """Load a model, start its engine and serve it to this block.

    `model`: a GGUF file, a checkpoint folder or a name on the Hub that was pulled; None: the default model, as
    `strata pull` left it.  `named` are settings by their flat names (`max_running=4`), instead of `settings`.

    `host` is an engine host of the caller's own, or a function that makes one for each incarnation of the engine,
    counted from 1: a host has one life, so without the function an engine that dies has no successor.  Its `tokenizer`
    and `template`, if it has them, speak for it, and are called in the event loop.

    Raises ConfigError and ModelError, which say what to do.  Leaving the block withdraws what is left and ends the
    engine; no thread, task or file of ours stays.
    """
    if settings is not None and named:
        raise TypeError("settings come as one value or by their names, not both")
    settings = settings or Settings.of(**named)
    first = host(1) if callable(host) else host
    voice: Voice | OpenedOnce
    if first is None:
        voice = file = await trio.to_thread.run_sync(find_file, model)
        hosts: Hosts = partial(make_host, file, settings, trace)
    else:
        own = own_voice(first)
        voice = own if own is not None else await trio.to_thread.run_sync(find_file, model)
        hosts = _with_first(first, host if callable(host) else None)
    async with _running(hosts, settings, voice, renewable=first is None or callable(host)) as runtime:
        yield runtime


def _with_first(first: EngineHost, others: Hosts | None) -> Hosts:
    """The first has been made already: it was asked for its language."""

    def make(incarnation: int) -> EngineHost:
        if incarnation == 1 or others is None:
            return first
        return others(incarnation)

    return make


@asynccontextmanager
async def _running(
    hosts: Hosts, settings: Settings, voice: Voice | OpenedOnce, *, renewable: bool
) -> AsyncIterator[Runtime]:
    failure, metrics = Failure(), Metrics(settings.served_name or name_of_voice(voice))
    dispatcher = Dispatcher(settings.scheduler, metrics)
    keeper = EngineKeeper(hosts, dispatcher, settings.hosting, on_lost=failure.say, renewable=renewable)
    actors = Registry(on_ended=keeper.ended)
    async with open_supervisor(actors, parent=ROOT) as engines:
        ready, own = await _start(keeper, engines, voice)
        try:
            async with open_supervisor(actors, parent=ROOT) as dispatchers:
                await dispatchers.start(dispatcher, on_failure=partial(_dispatcher_failed, failure, actors, keeper))
                async with open_supervisor(actors, parent=ROOT) as requests:
                    info = own.info(settings.served_name, ready.context)
                    runtime = Runtime(
                        model=info,
                        language=own.language(info, _shared_pages(settings, ready)),
                        settings=settings,
                        actors=actors,
                        requests=requests,
                        dispatcher=dispatcher,
                        keeper=keeper,
                        metrics=metrics,
                        failure=failure,
                    )
                    metrics.show(runtime.snapshot)
                    try:
                        yield runtime
                    finally:
                        # Bounded: the dispatcher answers in its next turn, and waits for no engine.
                        with trio.CancelScope(shield=True):
                            await runtime.close()
        finally:
            # An engine that ends while all are told to end has no successor.
            keeper.close()


async def _start(keeper: EngineKeeper, engines: Supervisor, voice: Voice | OpenedOnce) -> tuple[Ready, Voice]:
    """The engine, and meanwhile the file's vocabulary.  Raises what hinders either."""
    voices: list[Voice] = []

    async def hear() -> None:
        voices.append(await heard(voice))

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            ready = await keeper.start(engines)
    except BaseExceptionGroup as group:
        raised = _one_of(group)
    else:
        return ready, voices[0]
    raise raised


def _one_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Both may find the same fault in a file: that is one error."""
    only_ours = group.split(StartError)[1] is None
    found = lone(group)
    while only_ours and isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _told_already(_info: KernelInfo, _error: Exception) -> None:
    """A request's actor has told its reader itself, and logged what it failed with."""


def _shared_pages(settings: Settings, ready: Ready) -> int | None:
    """The size of the pages in which prompts that begin alike share what is read."""
    return ready.page_tokens if settings.scheduler.prefix_cache else None


def _dispatcher_failed(
    failure: Failure, actors: Registry, keeper: EngineKeeper, _info: KernelInfo, error: Exception
) -> None:
    """A bug of ours.  Whoever waits for it, or would, is told, and the engine works for nobody any more."""
    error_id = new_error_id()
    log.critical("%s: the dispatcher failed: %s", error_id, frames_of(error))
    failure.say(f"the dispatcher failed; the log has it as {error_id}")
    error_told = InternalError(f"something went wrong here; the log has it as {error_id}", error_id=error_id)
    for actor in actors:
        if isinstance(actor, RequestActor):
            actor.ref.tell(Ended(actor.seq, Failed(error_told), NOTHING_YET))
    keeper.stop()  # The engine would go on with its last step, for nobody.
