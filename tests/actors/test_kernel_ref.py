"""Who asks gets an answer, or an error that says why there is none."""

from __future__ import annotations

import random

import pytest
import trio
from attrs import frozen
from trio.testing import MockClock, wait_all_tasks_blocked

from strata.actors.kernel import Actor, Registry, Reply, open_supervisor
from strata.errors import ActorGone, InvalidRequest, Overloaded


@frozen
class Double:
    number: int
    reply: Reply[int]


@frozen
class Keep:
    reply: Reply[int]


class Doubler(Actor[Double | Keep | str]):
    """Doubles numbers, keeps replies to itself, and does what a word says."""

    kind = "doubler"

    def __init__(self, *, limit: int | None = None) -> None:
        super().__init__(limit=limit)
        self.kept: list[Reply[int]] = []

    async def run(self) -> None:
        while True:
            for message in await self.mailbox.receive_batch():
                match message:
                    case Double(number, reply) if number < 0:
                        reply.refuse(InvalidRequest("too small"))
                    case Double(number, reply):
                        reply.answer(2 * number)
                    case Keep(reply):
                        self.kept.append(reply)
                    case "fail":
                        raise ValueError("told to fail")
                    case "end":
                        return


def ignore(*_about: object) -> None:
    """A failure that the test is about."""


async def test_an_answer_comes_to_its_asker() -> None:
    async with open_supervisor(Registry()) as supervisor:
        ref = supervisor.spawn(Doubler(), on_failure="escalate")
        assert await ref.ask(lambda reply: Double(21, reply)) == 42


async def test_a_refusal_is_raised_in_its_asker() -> None:
    async with open_supervisor(Registry()) as supervisor:
        ref = supervisor.spawn(Doubler(), on_failure="escalate")
        with pytest.raises(InvalidRequest, match="too small"):
            await ref.ask(lambda reply: Double(-1, reply))


async def test_a_full_mailbox_is_the_askers_error_and_leaves_no_reply_open() -> None:
    doubler = Doubler(limit=1)
    doubler.ref.tell("end")
    with pytest.raises(Overloaded):
        await doubler.ref.ask(Keep)
    assert doubler.ref.asked == 0


@pytest.mark.parametrize("word", ["fail", "end"])
async def test_who_waits_for_an_actor_that_ends_is_told_so(word: str) -> None:
    """B35: no client waits for an actor that is gone, whether it ended well or not."""
    async with open_supervisor(Registry()) as supervisor, trio.open_nursery() as nursery:
        ref = supervisor.spawn(Doubler(), on_failure=ignore)
        for wish in (Keep, Keep):

            async def ask(wish: type[Keep] = wish) -> None:
                with pytest.raises(ActorGone, match="doubler-1"):
                    await ref.ask(wish)

            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        ref.tell(word)


async def test_what_was_asked_but_never_read_is_refused_too() -> None:
    """B35: the question waited in the mailbox when its actor ended."""
    async with open_supervisor(Registry()) as supervisor:
        ref = supervisor.spawn(Doubler(), on_failure="escalate")
        ref.tell("end")
        with pytest.raises(ActorGone):
            await ref.ask(lambda reply: Double(1, reply))


async def test_who_asks_an_actor_that_is_gone_is_told_at_once() -> None:
    """B35: and what it is told is dropped without an error."""
    async with open_supervisor(Registry()) as supervisor:
        actor = Doubler()
        ref = supervisor.spawn(actor, on_failure="escalate")
        ref.tell("end")
        await actor.wait_ended()
        assert ref.gone
        with pytest.raises(ActorGone):
            await ref.ask(Keep)
        ref.tell("hello")
        assert actor.mailbox.dropped == 1


async def test_an_answer_to_an_asker_who_left_is_ignored() -> None:
    doubler = Doubler()
    async with open_supervisor(Registry()) as supervisor:
        ref = supervisor.spawn(doubler, on_failure="escalate")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ref.ask, Keep)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        doubler.kept[0].answer(1)
        doubler.kept[0].refuse(ValueError("late"))
        assert await ref.ask(lambda reply: Double(1, reply)) == 2


async def test_only_the_first_answer_counts(nursery: trio.Nursery) -> None:
    doubler = Doubler()
    async with open_supervisor(Registry()) as supervisor:
        ref = supervisor.spawn(doubler, on_failure="escalate")
        got: list[int] = []

        async def ask() -> None:
            got.append(await ref.ask(Keep))

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        doubler.kept[0].answer(1)
        doubler.kept[0].answer(2)
        doubler.kept[0].refuse(ValueError("late"))
        await wait_all_tasks_blocked()
        assert got == [1]


async def test_an_answer_that_was_given_before_the_wait_is_kept() -> None:
    reply: Reply[int] = Reply(set())
    reply.answer(7)
    assert await reply.wait() == 7


async def test_asking_can_be_cancelled_where_it_waits_and_leaves_nothing_open() -> None:
    doubler = Doubler()
    async with open_supervisor(Registry()) as supervisor:
        ref = supervisor.spawn(doubler, on_failure="escalate")
        for already in (True, False):
            with trio.CancelScope() as scope:
                if already:
                    scope.cancel()
                else:
                    scope.deadline = trio.current_time() + 0.01
                await ref.ask(Keep)
            assert scope.cancelled_caught
        assert ref.asked == 0


@pytest.mark.parametrize("seed", range(3))
async def test_of_a_thousand_random_asks_each_is_settled_though_the_actor_dies(
    seed: int, autojump_clock: MockClock
) -> None:
    """B35: answered, refused, cancelled or told that the actor is gone; none waits for ever, nobody is left."""
    chance = random.Random(seed)
    settled: list[str] = []
    doubler = Doubler()
    registry = Registry()

    async def ask(number: int) -> None:
        await trio.sleep(chance.random())
        with trio.move_on_after(chance.choice([0.001, 10])) as scope:
            try:
                wish = Keep if number % 3 == 0 else lambda reply: Double(number, reply)
                assert await doubler.ref.ask(wish) == 2 * number
                settled.append("answered")
            except ActorGone:
                settled.append("gone")
        if scope.cancelled_caught:
            settled.append("cancelled")

    async with open_supervisor(registry) as supervisor:
        supervisor.spawn(doubler, on_failure=ignore)
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(ask, number)
            await trio.sleep(chance.uniform(0.2, 0.8))
            doubler.ref.tell("fail")
    assert len(settled) == 1000
    assert {"answered", "gone", "cancelled"} == set(settled)
    assert doubler.ref.asked == 0
    assert len(registry) == 0
