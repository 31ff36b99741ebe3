"""Cancelled at any one of its awaits, a tree of actors ends in order and leaves nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import trio
from attrs import frozen
from trio.testing import MockClock

from strata.actors.engine import EngineActor
from strata.actors.kernel import Actor, ActorState, Mailbox, Ref, Registry, Reply, open_supervisor
from strata.errors import ActorGone
from strata.messages import EngineDied, FromEngine, Grant, Open, Ready, Sampling, Seq, Step, Stopped, ToEngine
from strata.testing import ScriptedEngine


class CancelAt(trio.abc.Instrument):
    """Cancels a scope just before the n-th turn of any task."""

    def __init__(self, turn: int) -> None:
        self.scope = trio.CancelScope()
        self.struck = False
        self._left = turn

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left == 0:
            self.struck = True
            self.scope.cancel()


@frozen
class Count:
    reply: Reply[int]


class Listener(Actor[Count | FromEngine]):
    """Counts what it hears, a little late."""

    kind = "listener"
    shielded = True

    def __init__(self) -> None:
        super().__init__("listener")
        self.heard: list[FromEngine] = []

    async def run(self) -> None:
        while True:
            for message in await self.mailbox.receive_batch():
                if isinstance(message, Count):
                    await trio.sleep(0.5)
                    message.reply.answer(len(self.heard))
                else:
                    self.heard.append(message)


class Play:
    """An engine, its listener and two askers: one whole life of each."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.listener = Listener()
        self.engine = EngineActor(ScriptedEngine(slice_s=1, step_s=1, start_s=1), self.listener.ref)
        self.settled = 0
        self.done = False

    async def act(self) -> None:
        async with open_supervisor(self.registry) as supervisor:
            supervisor.spawn(self.listener, on_failure="escalate")
            async with open_supervisor(self.registry, parent="listener") as inner:
                engine = await inner.start(self.engine, on_failure="escalate")
                self.ask_for_an_answer(engine)
                async with trio.open_nursery() as nursery:
                    for pause in (0.1, 3):
                        nursery.start_soon(self.ask, pause)
                self.done = True

    def ask_for_an_answer(self, engine: Ref[ToEngine]) -> None:
        for wish in (Open(Seq(1), (1, 2), Sampling(max_tokens=2)), Grant(Seq(1), (0,)), Step(1, read=Seq(1))):
            engine.tell(wish)

    async def ask(self, pause: float) -> None:
        await trio.sleep(pause)
        try:
            assert await self.listener.ref.ask(Count) > 0
        except ActorGone:
            # It was cancelled in the same turn.
            await trio.lowlevel.checkpoint()
        self.settled += 1


def play(turn: int) -> tuple[Play, CancelAt]:
    strike = CancelAt(turn)

    async def main() -> Play:
        before = trio.lowlevel.current_statistics().tasks_living
        piece = Play()
        with strike.scope:
            await piece.act()
        assert trio.lowlevel.current_statistics().tasks_living == before, "a task outlives its supervisor"
        return piece

    return trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[strike]), strike


def plays() -> Iterator[tuple[Play, bool]]:
    """The play cancelled at its first turn, at its second, ... and once not at all."""
    for turn in range(1, 10_000):
        piece, strike = play(turn)
        yield piece, strike.struck
        if not strike.struck:
            return


def test_cancelled_at_any_turn_a_tree_of_actors_leaves_nothing_and_says_each_end_once() -> None:
    """B35: no task, no entry, no open question; and an engine that was up has exactly one last word."""
    struck_at = 0
    for piece, struck in plays():
        struck_at += struck
        assert len(piece.registry) == 0
        assert piece.listener.ref.asked == 0
        assert piece.engine.state in (ActorState.STARTING, ActorState.STOPPED), "starting: it was never begun"
        assert piece.listener.state in (ActorState.STARTING, ActorState.STOPPED)
        said = heard(piece)
        last_words = [fact for fact in said if isinstance(fact, Stopped | EngineDied)]
        assert last_words == ([Stopped()] if said else [])
        assert last_words == said[-1:]
        assert piece.done or struck
    assert piece.settled == 2
    assert isinstance(said[0], Ready)
    assert struck_at > 40


def heard(piece: Play) -> list[FromEngine]:
    """What the engine said: what its listener took, and what was left in its mailbox."""
    left = piece.listener.mailbox
    return piece.listener.heard + [left.take_nowait() for _ in range(left.depth)]


def test_a_message_told_while_its_reader_is_cancelled_at_any_turn_is_received_or_still_there() -> None:
    """Nothing is lost between the mailbox and the hand of the reader."""
    for turn in range(1, 60):
        strike = CancelAt(turn)
        mailbox: Mailbox[int] = Mailbox()
        got: list[int] = []

        async def read(strike: CancelAt = strike, mailbox: Mailbox[int] = mailbox, got: list[int] = got) -> None:
            with strike.scope:
                while len(got) < 20:
                    got.extend(await mailbox.receive_batch())
                    got.append(await mailbox.receive())

        async def main(mailbox: Mailbox[int] = mailbox, read: Callable[[], Awaitable[None]] = read) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                for number in range(30):
                    mailbox.tell(number)
                    if number % 3:
                        await trio.lowlevel.checkpoint()

        trio.run(main, instruments=[strike])
        rest = [mailbox.take_nowait() for _ in range(mailbox.depth)]
        assert got + rest == list(range(30))
