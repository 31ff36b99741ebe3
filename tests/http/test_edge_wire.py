"""One socket's bytes: bounded in time, whole or reset, never half."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing
from edge_support import receive_all

from strata.http.wire import FINISH_S, Wire

LOT = b"x" * 2**20


def pair(stall_s: float = 30) -> tuple[Wire, trio.SocketStream]:
    near, far = socket.socketpair()
    near.setblocking(False)
    return Wire(near, stall_s=stall_s), trio.SocketStream(trio.socket.from_stdlib_socket(far))


async def read_exactly(stream: trio.abc.ReceiveStream, size: int) -> int:
    got = 0
    while got < size:
        got += len(await stream.receive_some())
    return got


async def test_what_fits_is_sent_at_once_and_the_rest_is_handed_back() -> None:
    wire, far = pair()
    async with wire, far:
        assert not wire.send_nowait(b"small")
        left = wire.send_nowait(LOT)
        assert 0 < len(left) < len(LOT)
        assert len(wire.send_nowait(left)) == len(left)


async def test_a_large_write_waits_for_its_reader() -> None:
    wire, far = pair()
    with trio.fail_after(5):
        async with wire, far, trio.open_nursery() as nursery:
            nursery.start_soon(wire.send_all, LOT)
            assert await read_exactly(far, len(LOT)) == len(LOT)


async def test_a_cancelled_write_still_becomes_whole_where_it_can(mock_clock: trio.testing.MockClock) -> None:
    """What began is finished within 0.2 s, and the cancel is met at the next checkpoint."""
    wire, far = pair()
    async with wire, far, trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        after: list[str] = []

        async def write() -> None:
            with scope:
                await wire.send_all(LOT)
                after.append("sent")
                await trio.lowlevel.checkpoint()
                after.append("not reached")

        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert after == []
        assert await read_exactly(far, len(LOT)) == len(LOT)
    assert after == ["sent"]
    assert scope.cancelled_caught
    assert mock_clock.current_time() < FINISH_S


async def test_a_cancelled_write_that_nobody_reads_resets_the_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wire, far = pair()
    async with wire, far:
        began = trio.current_time()
        with trio.move_on_after(1) as scope:
            await wire.send_all(LOT)
        assert scope.cancelled_caught
        assert trio.current_time() - began == pytest.approx(1 + FINISH_S)
        with pytest.raises(trio.BrokenResourceError):
            wire.send_nowait(b"more")
        assert len(await receive_all(far)) < len(LOT)


async def test_a_client_that_takes_nothing_breaks_the_write(autojump_clock: trio.testing.MockClock) -> None:
    wire, far = pair(stall_s=30)
    async with wire, far:
        began = trio.current_time()
        with pytest.raises(trio.BrokenResourceError, match="the client took nothing for 30 s"):
            await wire.send_all(LOT)
        assert trio.current_time() - began == pytest.approx(30)


async def test_a_client_that_left_breaks_the_write() -> None:
    wire, far = pair()
    async with wire:
        await far.aclose()
        with pytest.raises(trio.BrokenResourceError):
            await wire.send_all(LOT)


async def test_closing_wakes_a_blocked_write() -> None:
    wire, far = pair()
    with trio.fail_after(5):
        async with far:

            async def write() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await wire.send_all(LOT)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                await trio.testing.wait_all_tasks_blocked()
                wire.reset()
            with pytest.raises((trio.ClosedResourceError, trio.BrokenResourceError)):
                await wire.send_all(b"more")
