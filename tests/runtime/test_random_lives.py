"""Whatever happens in whatever order: each request that was let in ends once, and nothing of it stays."""

from __future__ import annotations

from typing import Any

import trio
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_runtime import FRAME, Engines, Scene, scripted
from trio.testing import MockClock

from strata.errors import (
    AlreadyDone,
    EngineUnavailable,
    Overloaded,
    RequestCancelled,
    SequenceFailed,
    ShuttingDown,
    UnknownRequest,
)
from strata.messages import ChatMessage, Delta, Open, Sampling, Seq, Summary
from strata.testing.language import ByteTokenizer, PlainTemplate
from strata.testing.script import Fault, RowFault, letters

EXPECTED = (EngineUnavailable, Overloaded, RequestCancelled, SequenceFailed, ShuttingDown)


@frozen
class Life:
    """A request, and what becomes of it: how long its reader stays, and who cancels it when."""

    at: float
    tokens: int
    max_tokens: int
    priority: int
    patience: float
    cancelled_at: float | None
    stop: tuple[str, ...]


times = st.integers(0, 80).map(lambda n: n * 0.005)
lives = st.builds(
    Life,
    at=times,
    tokens=st.sampled_from([30, 64, 65, 200, 700]),
    max_tokens=st.integers(1, 12),
    priority=st.sampled_from([-1, 0, 0, 0, 1]),
    patience=st.one_of(st.just(1000.0), times),
    cancelled_at=st.none() | times,
    stop=st.sampled_from([(), ("a",), ("ab", "q")]),
)
faults = st.lists(
    st.one_of(
        st.builds(RowFault, seq=st.integers(1, 6), index=st.integers(0, 5)),
        st.builds(Fault, does=st.sampled_from(["die", "raise", "vanish"]), slice=st.integers(1, 60)),
        st.builds(Fault, step=st.integers(1, 20)),
    ),
    max_size=2,
)
"""Of one engine."""
rules = st.fixed_dictionaries(
    {
        "max_running": st.sampled_from([1, 2, 8]),
        "preempt": st.sampled_from(["off", "chunk", "slice"]),
        "max_queued": st.sampled_from([2, 256]),
        "on_engine_death": st.sampled_from(["fail", "replay", "replay"]),
        "max_replays": st.sampled_from([0, 1, 3]),
    }
)


async def live(scene: Scene, name: str, life: Life, ends: dict[str, list[str]]) -> None:
    ends[name] = []
    await trio.sleep(life.at)
    with trio.move_on_after(life.patience):
        try:
            async with scene.chat(
                name, life.tokens, life.max_tokens, priority=life.priority, temperature=0, stop=life.stop
            ) as stream:
                text = await read(stream, life, ends[name])
            assert whole(name, life).startswith(text)
            assert len(text) == life.max_tokens or any(stop in whole(name, life) for stop in life.stop)
        except EXPECTED as error:
            ends[name].append(type(error).__name__)


def whole(name: str, life: Life) -> str:
    """Its answer, were nothing ever to go wrong and no stop string to come."""
    content = name.ljust(life.tokens - FRAME, ".")
    tokens = ByteTokenizer().encode(PlainTemplate().render([ChatMessage("user", content)]))
    opened = Open(Seq(0), tuple(tokens), Sampling(temperature=0))
    return bytes(letters(opened, index) for index in range(life.max_tokens)).decode()


async def read(stream: Any, life: Life, ends: list[str]) -> str:
    """To its end; the end is told again and again, and always the same.  The text."""
    written, text = 0, ""
    while batch := await stream.batch():
        deltas = [item for item in batch if isinstance(item, Delta)]
        written += sum(delta.tokens for delta in deltas)
        text += "".join(delta.text for delta in deltas)
        ends += [item.finish_reason for item in batch if isinstance(item, Summary)]
    assert written <= stream.summary.figures.written_tokens <= life.max_tokens
    assert await stream.batch() == []
    return text


async def cancel(scene: Scene, id: str, at: float) -> None:
    await trio.sleep(at)
    try:
        scene.runtime.cancel(id)
    except (AlreadyDone, UnknownRequest):
        return


async def walk(all_lives: list[Life], wrong: list[list[Any]], named: dict[str, Any], drained_at: float | None) -> None:
    ends: dict[str, list[str]] = {}
    engines = Engines(*wrong)
    async with scripted(engines, max_priority=1, restart_limit=2, restart_backoff_s=0.05, **named) as scene:
        async with trio.open_nursery() as nursery:
            for n, life in enumerate(all_lives, start=1):
                nursery.start_soon(live, scene, f"life {n}", life, ends)
                if life.cancelled_at is not None:
                    nursery.start_soon(cancel, scene, f"request-{n}", life.at + life.cancelled_at)
            if drained_at is not None:
                await trio.sleep(drained_at)
                scene.runtime.drain()
        now = scene.runtime.statistics()
        assert (now.queued, now.reading, now.parked, now.decoding) == (0, 0, 0, 0)
        assert (now.pages_held, now.pages_free) == (0, 64)
        assert not any(info.kind == "request" for info in scene.runtime.tree())
        patient = {n for n, life in enumerate(all_lives, start=1) if life.patience == 1000}
        assert all(len(ends[f"life {n}"]) == 1 for n in patient)
        assert all(len(found) <= 1 for found in ends.values())
        await trio.sleep(1)
        last = engines.made[-1]
        assert last.open_sequences == last.half_read == 0 or not scene.runtime.health().ready


@given(st.lists(lives, min_size=1, max_size=8), st.lists(faults, max_size=4), rules, st.none() | times)
@settings(max_examples=60, deadline=None)
def test_each_request_ends_once_and_nothing_of_it_stays(
    all_lives: list[Life], wrong: list[list[Any]], named: dict[str, Any], drained_at: float | None
) -> None:
    """B26, B35: departures, cancels, stop strings, a drain, sequences that fail and engines that die, at any time.

    B31: what is whole has the text of an undisturbed run.
    """
    trio.run(walk, all_lives, wrong, named, drained_at, clock=MockClock(autojump_threshold=0))
