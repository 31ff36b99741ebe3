"""How long a short request waits for its first token: alone, behind a long prompt, behind a long answer.

On a runtime in this process, so that no network and no client is in the figures.  Doesn't know why anybody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

import trio

from strata.bench.asking import Asker
from strata.bench.device import device_name
from strata.bench.report import Column, Report
from strata.config import Settings
from strata.runtime import Stream, open_runtime

BEGUN: Final = 0.25
"""The share of a long prompt's time after which the short request comes."""

ALONE, READ, ANSWER = "alone", "behind a long read", "behind a long answer"

COLUMNS: Final = (
    Column("arm", "a short request"),
    Column("rounds", "rounds", "d"),
    Column("ttft_s", "first token (s)", ",.3f", drawn=True),
    Column("worst_s", "worst (s)", ",.3f"),
    Column("over_alone", "times alone", ",.2f", drawn=True),
    Column("over_alone_worst", "worst", ",.2f"),
)


async def contention(path: Path, settings: Settings, repeats: int, say: Callable[[str], None]) -> Report:
    """So many rounds of all three; ratios are taken within each round.  Raises ModelError, ConfigError."""
    rounds: list[dict[str, float]] = []
    async with open_runtime(path, settings=settings) as runtime:
        asker = Asker(runtime)
        await asker.measure_words()
        for number in range(repeats):
            say(f"round {number + 1} of {repeats}")
            rounds.append(await _round(asker))
        return Report(
            what=f"contention (policy {settings.policy})",
            model=f"{runtime.model.id} ({runtime.model.quantisation})",
            device=device_name(settings.engine),
            repeats=repeats,
            columns=COLUMNS,
            rows=tuple(_row(arm, rounds) for arm in (ALONE, READ, ANSWER)),
        )


async def _round(asker: Asker) -> dict[str, float]:
    """Seconds to the first token of each arm; an arm whose long one had ended too early is not in it."""
    before = await _first_token(asker)
    async with asker.long() as stream:
        began = trio.current_time()
        await stream.text()
        read_s = trio.current_time() - began
    found: dict[str, float] = {}
    async with asker.long() as stream:
        await trio.sleep(BEGUN * read_s)
        if stream.figures().ttft_s is None:
            found[READ] = await _first_token(asker)
    async with asker.short(asker.longest_answer) as stream:
        await _writes(stream)
        if stream.summary is None:
            found[ANSWER] = await _first_token(asker)
    # Before and after, so that a machine whose speed drifts treats all alike.
    found[ALONE] = (before + await _first_token(asker)) / 2
    return found


async def _first_token(asker: Asker) -> float:
    began = trio.current_time()
    async with asker.short(2) as stream:
        await stream.batch()
        return trio.current_time() - began


async def _writes(stream: Stream) -> None:
    """Until some of it is there."""
    await stream.batch()
    await stream.batch()


def _row(arm: str, rounds: list[dict[str, float]]) -> Mapping[str, Any]:
    here = [one for one in rounds if arm in one]
    seconds = [one[arm] for one in here]
    over = [one[arm] / one[ALONE] for one in here]
    return {
        "arm": arm,
        "rounds": len(here),
        "ttft_s": median(seconds) if here else None,
        "worst_s": max(seconds, default=None),
        "over_alone": median(over) if here else None,
        "over_alone_worst": max(over, default=None),
        "samples": seconds,
    }
