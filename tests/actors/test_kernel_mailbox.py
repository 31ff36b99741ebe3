"""A mailbox keeps every message, in order, whatever happens to its reader."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from strata.actors.kernel import Mailbox
from strata.errors import Overloaded


async def test_what_was_told_is_received_in_order() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for n in range(3):
        mailbox.tell(n)
    assert [await mailbox.receive() for _ in range(3)] == [0, 1, 2]


async def test_a_batch_is_all_that_is_there() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for n in range(1000):
        mailbox.tell(n)
    assert await mailbox.receive_batch() == list(range(1000))
    assert mailbox.depth == 0


@pytest.mark.parametrize("receive", [Mailbox.receive, Mailbox.receive_batch])
async def test_a_reader_waits_until_somebody_tells(receive: Any, nursery: trio.Nursery) -> None:
    mailbox: Mailbox[str] = Mailbox()
    got: list[object] = []

    async def read() -> None:
        got.append(await receive(mailbox))

    nursery.start_soon(read)
    await wait_all_tasks_blocked()
    assert got == []
    mailbox.tell("now")
    await wait_all_tasks_blocked()
    assert got in (["now"], [["now"]])


async def test_take_nowait_never_waits() -> None:
    mailbox: Mailbox[int] = Mailbox()
    with pytest.raises(trio.WouldBlock):
        mailbox.take_nowait()
    mailbox.tell(1)
    assert mailbox.take_nowait() == 1


async def test_a_full_mailbox_refuses_and_keeps_what_it_has() -> None:
    mailbox: Mailbox[int] = Mailbox(2)
    mailbox.tell(1)
    mailbox.tell(2)
    with pytest.raises(Overloaded):
        mailbox.tell(3)
    assert await mailbox.receive_batch() == [1, 2]
    mailbox.tell(4)
    assert mailbox.take_nowait() == 4


async def test_a_mailbox_that_could_hold_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="0"):
        Mailbox(0)


async def test_a_closed_mailbox_drops_and_counts_what_is_told() -> None:
    mailbox: Mailbox[int] = Mailbox(1)
    mailbox.tell(1)
    mailbox.close()
    mailbox.close()
    mailbox.tell(2)
    mailbox.tell(3)
    assert (mailbox.dropped, mailbox.depth) == (2, 1)


async def test_what_a_closed_mailbox_holds_can_still_be_taken_and_then_it_is_an_error() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.tell(1)
    mailbox.close()
    assert await mailbox.receive() == 1
    with pytest.raises(trio.ClosedResourceError):
        await mailbox.receive_batch()
    with pytest.raises(trio.ClosedResourceError):
        mailbox.take_nowait()


async def test_a_waiting_reader_hears_that_its_mailbox_is_closed(nursery: trio.Nursery) -> None:
    mailbox: Mailbox[int] = Mailbox()
    heard = trio.Event()

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await mailbox.receive()
        heard.set()

    nursery.start_soon(read)
    await wait_all_tasks_blocked()
    mailbox.close()
    await heard.wait()


async def test_a_second_reader_is_refused_and_the_first_goes_on(nursery: trio.Nursery) -> None:
    mailbox: Mailbox[int] = Mailbox()
    got: list[int] = []

    async def read() -> None:
        got.append(await mailbox.receive())

    nursery.start_soon(read)
    await wait_all_tasks_blocked()
    with pytest.raises(trio.BusyResourceError):
        await mailbox.receive()
    mailbox.tell(1)
    await wait_all_tasks_blocked()
    assert got == [1]


@pytest.mark.parametrize("receive", [Mailbox.receive, Mailbox.receive_batch])
async def test_receiving_what_is_there_is_a_checkpoint_that_loses_nothing_when_cancelled(receive: Any) -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.tell(1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await receive(mailbox)
    assert scope.cancelled_caught
    assert mailbox.take_nowait() == 1


async def test_a_message_that_meets_the_cancellation_of_its_reader_is_not_lost() -> None:
    for tell_first in (True, False):
        mailbox: Mailbox[int] = Mailbox()
        got: list[int] = []
        async with trio.open_nursery() as nursery:

            async def read(mailbox: Mailbox[int] = mailbox, got: list[int] = got) -> None:
                got.append(await mailbox.receive())

            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            if tell_first:
                mailbox.tell(1)
                nursery.cancel_scope.cancel()
            else:
                nursery.cancel_scope.cancel()
                mailbox.tell(1)
        assert got + [mailbox.take_nowait() for _ in range(mailbox.depth)] == [1]


class Walk:
    """A mailbox beside the plain list of what must be in it."""

    def __init__(self, nursery: trio.Nursery, limit: int | None) -> None:
        self.mailbox: Mailbox[int] = Mailbox(limit)
        self.limit = limit
        self.inside: deque[int] = deque()
        self.nursery = nursery
        self.reader: trio.CancelScope | None = None
        self.told = 0
        self.closed = False

    def tell(self) -> None:
        self.told += 1
        full = self.limit is not None and self.mailbox.depth >= self.limit
        if full and not self.closed:
            with pytest.raises(Overloaded):
                self.mailbox.tell(self.told)
            return
        self.mailbox.tell(self.told)
        if not self.closed:
            self.inside.append(self.told)

    def take(self) -> None:
        if self.mailbox.depth:
            assert self.mailbox.take_nowait() == self.inside.popleft()
        else:
            with pytest.raises((trio.WouldBlock, trio.ClosedResourceError)):
                self.mailbox.take_nowait()

    def read(self, batch: bool) -> None:
        if self.reader is None:
            self.reader = trio.CancelScope()
            self.nursery.start_soon(self._read, batch, self.reader)

    async def _read(self, batch: bool, scope: trio.CancelScope) -> None:
        with scope:
            try:
                got = await self.mailbox.receive_batch() if batch else [await self.mailbox.receive()]
            except trio.ClosedResourceError:
                assert self.closed
                assert not self.inside
            else:
                assert got
                assert got == [self.inside.popleft() for _ in got]
        self.reader = None

    def cancel(self) -> None:
        if self.reader is not None:
            self.reader.cancel()

    def close(self) -> None:
        self.closed = True
        self.mailbox.close()


@given(
    st.lists(st.sampled_from(["tell", "tell", "tell", "take", "receive", "batch", "cancel", "settle", "close"])),
    st.none() | st.integers(1, 3),
)
def test_no_history_loses_doubles_or_reorders_a_message(steps: list[str], limit: int | None) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            walk = Walk(nursery, limit)
            for step in steps:
                match step:
                    case "receive" | "batch":
                        walk.read(batch=step == "batch")
                    case "settle":
                        await wait_all_tasks_blocked()
                    case _:
                        getattr(walk, step)()
            await wait_all_tasks_blocked()
            assert walk.mailbox.depth == len(walk.inside)
            assert not (walk.reader and walk.inside), "a reader waits beside a message"
            nursery.cancel_scope.cancel()
        assert [walk.mailbox.take_nowait() for _ in range(walk.mailbox.depth)] == list(walk.inside)

    trio.run(main, clock=MockClock(autojump_threshold=0))
