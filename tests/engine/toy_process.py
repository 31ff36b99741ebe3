"""Engines on the toy model, for child processes: named by `toy_process:toy`, and made from plain values."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
from toy_model import ToyModel

from strata import errors
from strata.config import EngineSettings
from strata.engine.budget import Budget
from strata.engine.engine import Engine
from strata.engine.spec import EngineSpec

CHUNK, PAGE = 64, 16
BUDGET = Budget(pages=96, page_tokens=PAGE, context=1024, rows=8, slots=40)


class SlowToy(ToyModel):
    """Takes real time, so that a test may come between two slices."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def _write(self, *where: int) -> int:
        time.sleep(self._seconds)
        return super()._write(*where)


def toy(slow_s: float = 0.0) -> Engine:
    """`slow_s`: what each token of each layer takes."""
    model = SlowToy(slow_s) if slow_s else ToyModel()
    return Engine(model, EngineSettings(chunk_tokens=CHUNK, page_tokens=PAGE), BUDGET)


TOY = EngineSpec("toy_process:toy")


# -- engines that can't be built, or not be lived with; each is a maker of its own ------------------------------------


def refuse(kind: str, words: list[str]) -> Engine:
    raise getattr(errors, kind)(*words)


def break_while_building() -> Engine:
    raise ZeroDivisionError("nobody thought of this")


def exit_while_building() -> Engine:
    os._exit(7)


def give_up_without_memory() -> Engine:
    """As a native library does."""
    os.write(2, b"OpenBLAS error: Memory allocation still failed after 10 retries, giving up.\n")
    os._exit(1)


def never_built() -> Engine:
    threading.Event().wait()
    raise AssertionError


def take_at_once() -> Engine:
    np.ones(1 << 30)
    return toy()


def junk() -> Engine:
    """Says what is no message, beside all that it says rightly."""
    os.write(int(sys.argv[1]), struct.pack(">IB", 1, 255) + b"?")
    return toy()


class Bad(Engine):
    """Does in its first slice what its model never would."""

    def __init__(self, does: Callable[[], object]) -> None:
        super().__init__(ToyModel(), EngineSettings(chunk_tokens=CHUNK, page_tokens=PAGE), BUDGET)
        self._does = does

    def advance(self) -> bool:
        # Not before it was told to run: the step may come alone, behind what it is about.
        if self.step_in_force is not None:
            self._does()
        return super().advance()


def crash() -> Engine:
    """A fault in native code."""
    return Bad(lambda: ctypes.string_at(0))


def hold_the_interpreter() -> Engine:
    """A native call that does not return and lets no other thread run."""
    return Bad(lambda: ctypes.PyDLL(None).sleep(1000))


def complain() -> Engine:
    """Writes on its output as a native library would, and exits as one would."""

    def do() -> None:
        print("to standard output", flush=True)
        os.write(2, b"some driver: \xff out of luck\n")
        os._exit(9)

    return Bad(do)


def take_too_much() -> Engine:
    return Bad(lambda: np.ones(1 << 30))


def named(maker: str, **arguments: object) -> EngineSpec:
    return EngineSpec(f"toy_process:{maker}", arguments)
