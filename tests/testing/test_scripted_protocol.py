"""The scripted engine keeps the protocol that every engine keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import protocol
import pytest
from trio.testing import MockClock

from strata.engine.host import EngineHost
from strata.testing import ScriptedEngine


def scripted() -> EngineHost:
    return ScriptedEngine(pages=80, page_tokens=16, chunk_tokens=64, slices_per_chunk=4, slots=40, strict=False)


@pytest.mark.parametrize("holds", protocol.ALL, ids=lambda holds: holds.__name__)
async def test_a_scripted_engine(
    holds: Callable[[Callable[[], EngineHost]], Awaitable[None]], autojump_clock: MockClock
) -> None:
    await holds(scripted)
