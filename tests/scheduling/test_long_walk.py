"""Long histories under pressure: more than rows, pages and slots hold, clients that leave, engines that die.

The walk of Hypothesis makes short ones, and shrinks them; these are drawn so that pages are always short.  Steps are
slices, decode steps and pages moved.  `STRATA_WALK_STEPS=1000000 pytest tests/scheduling/test_long_walk.py` makes more,
and `bench/walk.py` records what it saw.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress

from model_engine import Work
from watched_desk import WatchedDesk

from strata.config import SchedulerSettings
from strata.engine.drive import HELD_S
from strata.errors import EngineUnavailable, Overloaded

STEPS = int(os.environ.get("STRATA_WALK_STEPS", "20000"))


def crowded(draw: random.Random) -> WatchedDesk:
    """With settings at which every rule has its day."""
    chosen = SchedulerSettings(
        chunk_tokens=64,
        max_queued=20,
        max_running=draw.choice([1, 1, 2, 4]),
        preempt=draw.choice(["slice", "slice", "slice", "chunk", "off"]),
        pass_burst_s=draw.choice([0.02, 0.1, 1.0]),
        order_share=draw.choice([0.25, 0.6]),
        short_tokens=draw.choice([0, 60, 400]),
        finish_tokens=draw.choice([0, 3]),
        min_park_tokens=draw.choice([0, 0, 70]),
        max_parks=draw.choice([0, 0, 2]),
        bypass_s=draw.choice([0.0, 0.5, 30.0]),
        quantum_s=draw.choice([0.0, 0.1, 0.5, 5.0]),
        turn_wait_s=draw.choice([0.0, 0.05, 0.4]),
        open_reads=draw.choice([1, 2, 4]),
        age_every_s=draw.choice([0.05, 0.5, 30.0]),
        expect_new_tokens=draw.choice([1, 20, 256]),
        swap_ratio=draw.choice([0.0, 10.0]),
        prefix_cache=draw.choice([True, True, False]),
        on_engine_death=draw.choice(["fail", "replay"]),
        max_replays=draw.choice([0, 1, 3]),
        max_wait_s=draw.choice([None, None, 5.0]),
    )
    work = Work(slices=draw.choice([1, 2, 4, 16]), workspaces=draw.choice([1, 2]))
    return WatchedDesk(
        chosen,
        work,
        pages=draw.choice([26, 26, 30, 40, 60]),
        slots=draw.choice([0, 1, 2, 5, 15, 30, 60]),
        finishes_chunks=draw.random() < 0.5,
        held_s=draw.choice([0.0, HELD_S, 10 * HELD_S]),
        at_once=draw.random() < 0.5,
    )


def several_come(desk: WatchedDesk, draw: random.Random) -> None:
    for _ in range(draw.randint(1, 3)):
        with suppress(Overloaded):
            desk.submit(
                draw.choice([1, 20, 64, 130, 300, 300]),
                draw.choice([1, 2, 20, 100, 100]),
                answer=draw.randint(1, 100),
                priority=draw.choice([0, 0, 0, 0, 1, -1, 3]),
                arrived=desk.now - draw.choice([0.0, 0.0, 0.3]),
                named_max=draw.random() < 0.5,
                like=draw.choice([None, 1, 1, 2]),
                alike=draw.choice([20, 70, 300]),
            )
        desk.run(draw.randint(0, 12))


def messages_cross(desk: WatchedDesk, draw: random.Random) -> None:
    desk.engine.deaf = draw.randint(0, 5)
    boundaries = draw.randint(1, 12)
    for _ in range(boundaries):
        desk.engine.advance()
    for _ in range(boundaries):
        desk.engine.advance()
        desk.hear(draw.randint(0, 9))


def something_happens(desk: WatchedDesk, draw: random.Random) -> None:
    luck = draw.random()
    if luck < 0.45:
        several_come(desk, draw)
    elif luck < 0.6:
        desk.run(draw.randint(1, 40))
    elif luck < 0.75:
        messages_cross(desk, draw)
    elif luck < 0.85 and desk.live:
        desk.withdraw(draw.choice(list(desk.live)))
    elif luck < 0.88 and desk.engine.sequences:
        desk.engine.fail(draw.choice(sorted(desk.engine.sequences)))
    elif luck < 0.9:
        desk.die(EngineUnavailable("the engine died"))
    else:
        desk.engine.now += draw.choice([0.0, 0.01, 1.0, 40.0])
        desk.decide()


def walk(seed: int) -> WatchedDesk:
    """One history, to the end of all that came.  Every decision is held against the rules."""
    draw = random.Random(seed)
    desk = crowded(draw)
    for _ in range(draw.randint(5, 60)):
        something_happens(desk, draw)
    desk.run(50_000)
    assert not desk.live, f"history {seed}: idle for ever with requests"
    desk.all_have_one_whole_end()
    now = desk.scheduler.statistics(desk.now)
    assert (now.pages_free, now.slots_free) == (now.pages_total, now.slots_total), f"history {seed}: places are lost"
    assert now.pages_reserved == now.pages_moving == now.short == now.blocked == 0
    return desk


def test_long_histories_under_pressure_keep_every_promise():
    """B10, B12, B22, B25: in states that no single test is for."""
    steps = seed = 0
    while steps < STEPS:
        steps += walk(seed).engine.ran
        seed += 1
