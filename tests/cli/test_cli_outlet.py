"""What a server writes never waits for its reader, on real pipes and files."""

from __future__ import annotations

import os
import sys
import time

import pytest

from strata.cli.outlet import Outlet, outlets

WAITING = 1 << 16
"""Bytes; as many as a pipe takes."""
LINES = 20_000
LOST = "strata: lines that could not be written and are lost"


def read(reader: int) -> bytes:
    """What is there."""
    try:
        return os.read(reader, 1 << 16)
    except BlockingIOError:
        return b""


def test_a_pipe_that_nobody_reads_holds_up_nobody_and_costs_no_more_than_it_may() -> None:
    """When it is read at last, the lines come in their order, and in the place of the lost ones it is said how many."""
    reader, writer = os.pipe()
    outlet = Outlet(writer, waiting_bytes=WAITING)
    for number in range(LINES):
        outlet.write(b"line %06d\n" % number)
    assert not outlet.finish(time.monotonic())
    os.set_blocking(reader, False)
    # It writes on while it is read.
    seen = b""
    deadline = time.monotonic() + 10
    while not outlet.finish(time.monotonic() + 0.01):
        assert time.monotonic() < deadline
        while data := read(reader):
            seen += data
    seen += read(reader)
    os.close(writer)
    os.close(reader)
    number = 0
    for line in seen.decode().splitlines():
        if line.startswith(LOST):
            number += int(line.removeprefix(f"{LOST}: "))
        else:
            assert line == f"line {number:06}"
            number += 1
    assert number == LINES
    assert LOST in seen.decode()
    # What the pipe holds, what is being written and what waits.
    assert len(seen) <= 4 * WAITING


def test_a_line_is_read_at_once_and_those_after_a_loss_follow_it() -> None:
    reader, writer = os.pipe()
    outlet = Outlet(writer, waiting_bytes=10)
    outlet.write(b"longer than what may wait\n")
    with open(reader, encoding="ascii") as file:
        assert file.readline() == f"{LOST}: 1\n"
        outlet.write(b"short\n")
        assert file.readline() == "short\n"
        assert outlet.finish(time.monotonic() + 10)
        os.close(writer)
        assert file.read() == ""


def test_a_pipe_that_was_closed_and_a_full_disk_end_nobody() -> None:
    reader, closed = os.pipe()
    os.close(reader)
    for file in (closed, os.open("/dev/full", os.O_WRONLY)):
        outlet = Outlet(file)
        outlet.write(b"nobody hears this\n")
        assert outlet.finish(time.monotonic() + 10)
        os.close(file)


def test_all_that_is_printed_is_written_when_the_block_ends(capfd: pytest.CaptureFixture[str]) -> None:
    """What is no whole line too."""
    before = sys.stdout, sys.stderr
    with outlets():
        print("first")
        print("second", file=sys.stderr)
        print("third", end="", flush=True)
    assert (sys.stdout, sys.stderr) == before
    said = capfd.readouterr()
    assert (said.out, said.err) == ("first\nthird", "second\n")


def test_a_pipe_that_does_not_wait_is_waited_for() -> None:
    """As another process that has it may have made it."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    outlet = Outlet(writer)
    for number in range(LINES):
        outlet.write(b"line %06d\n" % number)
    outlet.write(b"end\n")
    with open(reader, encoding="ascii") as file:
        assert [file.readline() for _ in range(LINES)] == [f"line {number:06}\n" for number in range(LINES)]
        assert file.readline() == "end\n"
    assert outlet.finish(time.monotonic() + 10)
    os.close(writer)
