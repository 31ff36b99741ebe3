"""What the scheduler answers.  Frozen values, and nothing that acts on them.

Decisions are structs: there are many, and most say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from attrs import evolve, frozen

from strata.messages import Grant, Seq, Step, SwapIn, SwapOut


class Opening(msgspec.Struct, frozen=True, gc=False):
    """This sequence starts now, and reads from `known` on: the pages hold what is before.  More come as grants."""

    seq: Seq
    pages: tuple[int, ...] = ()
    known: int = 0


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What to tell the engine now: `closes` first, then `opens`, `grants`, `moves` and `step`.

    Empty where all stays as it is, so asking twice says nothing new.
    """

    step: Step | None = None
    """None: the newest one stays."""
    opens: tuple[Opening, ...] = ()
    grants: tuple[Grant, ...] = ()
    moves: tuple[SwapOut | SwapIn, ...] = ()
    closes: tuple[Seq, ...] = ()
    wake_at: float | None = None
    """Ask again at this time (monotonic seconds) even if nothing happens.  None: time alone changes nothing."""


@frozen(kw_only=True)
class Statistics:
    """The scheduler at one time.  Counters (parks, resumes, ended, refused, tokens, seconds) only ever grow."""

    at: float
    """Monotonic seconds."""

    states: Mapping[str, int]
    """How many are in each state that somebody is in; `done` until their end was taken."""
    running: int
    max_running: int
    queued: int
    queued_tokens: int
    queued_for_s: float
    """Since the first of those queued arrived; 0 where there is none."""
    blocked: int
    """Queued, and was once first in rank and short of pages only."""
    pages_total: int
    pages_free: int
    """Nobody holds them."""
    pages_cached: int
    """Free ones that still hold the beginning of a prompt."""
    pages_held: int
    pages_moving: int
    """Between the device and the arena."""
    pages_parked: int
    """On the device, of those that are parked; one that several of them share counts once."""
    slots_total: int
    slots_free: int
    short: int
    """Parked, and can't go on for want of pages only."""
    pages_reserved: int
    half_read: int
    """Chunks begun and not complete, each in one of `workspaces`."""
    workspaces: int
    purses: Mapping[int, float]
    """By priority (seconds)."""
    steps: int
    """Step messages so far."""
    parks: Mapping[str, int]
    """By reason."""
    resumes: int
    pages_out: int
    """Moved to the arena."""
    pages_in: int
    """And back."""
    ended: Mapping[str, int]
    """By outcome: completed, cancelled, failed."""
    refused: Mapping[str, int]
    """By reason: too long, overloaded."""
    read_tokens: int
    cached_tokens: int
    """Of prompts that started: known, and not read again."""
    written_tokens: int
    engine_s: float
    longest_chunk_s: float
    longest_step_s: float
    give_way_count: int
    give_way_s: float
    """From sending a step that parks somebody to its being in force, in all."""
    give_way_longest_s: float

    def with_nobody(self) -> Statistics:
        """The counters as they are, and no request."""
        return evolve(
            self,
            states={},
            running=0,
            queued=0,
            queued_tokens=0,
            queued_for_s=0.0,
            blocked=0,
            short=0,
            pages_free=self.pages_total,
            pages_cached=0,
            pages_held=0,
            pages_reserved=0,
            pages_moving=0,
            pages_parked=0,
            slots_free=self.slots_total,
            half_read=0,
        )
