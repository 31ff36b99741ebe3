"""The threads that share out one operation's work.  Know jobs; nothing of what they compute.

BLAS would split a product over threads of its own, and collapses as soon as one processor is busy with something else.
Here the pieces are fixed by the operation, whoever takes them: threads take the next piece when they have done one, so
a thread that the machine holds up costs one piece and not the whole operation, and the bits never depend on how many
threads there are.
"""

from __future__ import annotations

import threading
import weakref
from _thread import LockType
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT: Final = 64
"""Bytes of a cache line, and of the widest vector."""


def aligned(*shape: int) -> NDArray[np.float32]:
    """An array of float32 that begins at a cache line; its values are whatever was there."""
    size = int(np.prod(shape, dtype=np.int64)) * 4
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % _ALIGNMENT
    return raw[skip : skip + size].view(np.float32).reshape(shape)


class Scratch:
    """One thread's own arrays, kept from job to job so that none is allocated twice."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, tuple[int, ...]], NDArray[np.float32]] = {}

    def array(self, name: str, *shape: int) -> NDArray[np.float32]:
        """The array of this name and shape, with whatever the last job left in it."""
        key = (name, shape)
        found = self._arrays.get(key)
        if found is None:
            found = self._arrays[key] = aligned(*shape)
        return found


Job: TypeAlias = Callable[[Scratch], None]


class _Round:
    """One operation's jobs, taken by whoever comes; `wait` returns when all of them are done."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = deque(jobs)
        self._left = len(self._jobs)
        self._count = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()
        self._error: BaseException | None = None

    def work(self, scratch: Scratch) -> None:
        while True:
            try:
                job = self._jobs.popleft()
            except IndexError:
                return
            try:
                job(scratch)
            except BaseException as error:  # raised again by `wait`, in the thread that asked for the work
                self._error = error
            self._finished()

    def _finished(self) -> None:
        with self._count:
            self._left -= 1
            if self._left == 0:
                self._done.release()

    def wait(self) -> None:
        self._done.acquire()
        if self._error is not None:
            raise self._error


class _Desk:
    """Where the helpers look for work.  Held by them instead of the `Workers`, which can so be forgotten."""

    def __init__(self) -> None:
        self.round: _Round | None = None
        self.closed = False


def _help(desk: _Desk, wake: LockType) -> None:
    with _quiet():
        _help_until_closed(desk, wake)


def _quiet() -> np.errstate:
    """What overflows becomes inf or nan: a sequence's own failure, seen at its logits, and no warning."""
    return np.errstate(all="ignore")


def _help_until_closed(desk: _Desk, wake: LockType) -> None:
    scratch = Scratch()
    while True:
        wake.acquire()  # without spinning first: a thread that spins in Python holds up the one that computes
        if desk.closed:
            return
        current = desk.round
        if current is not None:
            current.work(scratch)
        del current


def _close(desk: _Desk, wakes: list[LockType], threads: list[threading.Thread]) -> None:
    desk.closed = True
    _wake(wakes)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()


def _wake(wakes: list[LockType]) -> None:
    for wake in wakes:
        if wake.locked():  # else it was woken already and hasn't got there yet
            wake.release()


class Workers:
    """`threads` in all, the caller among them.  One caller at a time."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._scratch = Scratch()
        self._desk = _Desk()
        self._wakes: list[LockType] = []
        helpers = []
        for number in range(1, threads):
            wake = threading.Lock()
            wake.acquire()
            helper = threading.Thread(target=_help, args=(self._desk, wake), name=f"strata-cpu-{number}", daemon=True)
            helper.start()
            self._wakes.append(wake)
            helpers.append(helper)
        self._finalizer = weakref.finalize(self, _close, self._desk, self._wakes, helpers)

    def run(self, jobs: list[Job]) -> None:
        """Do all of them, in any order and at the same time.  Raises what one of them raised."""
        with _quiet():
            if len(jobs) < 2 or not self._wakes:
                for job in jobs:
                    job(self._scratch)
            else:
                self._share(jobs)

    def _share(self, jobs: list[Job]) -> None:
        current = _Round(jobs)
        self._desk.round = current
        _wake(self._wakes[: len(jobs) - 1])
        current.work(self._scratch)
        self._desk.round = None
        current.wait()

    def close(self) -> None:
        """End the threads and wait for their end; a second close does nothing."""
        self._finalizer()
