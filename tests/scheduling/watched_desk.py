"""A desk that holds every decision against the rules.  For the walks of this room."""

from __future__ import annotations

from typing import Any

from desk import Desk
from model_engine import Work

from strata.config import SchedulerSettings
from strata.errors import StrataError
from strata.messages import (
    ChunkRead,
    Completed,
    Decoded,
    FromEngine,
    Progress,
    Seq,
    Step,
    SwappedIn,
    SwappedOut,
    Took,
)
from strata.scheduling import Change, Decision

PARKED = ("parked (reading)", "parked (decoding)")
STARTS = {"rank", "level", "short", "purse", "turn", "aged"}
TINY = 1e-9


class WatchedDesk(Desk):
    """A desk that holds every decision against the rules, by what was asked and heard alone."""

    def __init__(
        self, settings: SchedulerSettings, work: Work, *, pages: int, slots: int, finishes_chunks: bool, **said: Any
    ) -> None:
        super().__init__(settings, work, pages=pages, slots=slots, finishes_chunks=finishes_chunks, **said)
        self.held: dict[Seq, int] = {}
        """Pages that it was given."""
        self.on_their_way: dict[Seq, int] = {}
        """Pages that are moving."""
        self.left: dict[Seq, int] = {}
        """Tokens still to read, by what was heard."""
        self.known: dict[Seq, int] = {}
        """Tokens that it need not read since it was last opened."""
        self.changes: dict[Seq, int] = {}
        self.ran: dict[Seq, int] = {}
        """Slices and steps under the step that placed it, or a newer one."""
        self.placed: dict[Seq, int] = {}
        self.runs_since: dict[Seq, float] = {}
        self.waits_since: dict[Seq, float] = {}
        self.aged: dict[Seq, tuple[float, int]] = {}
        """Those that run by their age: since when, and past which priority at least."""
        self.last_aged: dict[int, float] = {}
        self.in_force = 0
        self.again: dict[Seq, int] = {}
        """Steps until it is where it was when the engine died."""
        self.stands: dict[Seq, tuple[int, int]] = {}
        """What each has written, and read in whole chunks by the engine that lives."""
        self.points: dict[Seq, tuple[int, int]] = {}
        """Where each stood when the last engine died."""
        self.alone: tuple[Seq, tuple[int, int]] | None = None
        """Who may have killed an engine and runs now, and the point that it has to get past."""

    def die(self, error: StrataError, **named: Any) -> None:
        for seq in self.live:
            self.left[seq], self.again[seq] = self.asked[seq].prompt, max(0, len(self.tokens.get(seq, ())) - 1)
        self.points, self.stands, self.alone = self.stands, {}, None
        self.aged.clear()
        self.on_their_way.clear()
        # The next engine is told again what the last one knew.
        self.steps.append(Step(-1, read_share=-float(len(self.steps) + 1)))
        super().die(error, **named)

    def suspects_run_alone(self, placed: dict[Seq, str]) -> None:
        """R10: until it has done more than when the engine died."""
        for seq, reason in placed.items():
            if reason == "suspect":
                self.alone = seq, self.points.get(seq, (0, 0))
        if self.alone is not None:
            seq, point = self.alone
            if seq not in self.live or self.stands.get(seq, (0, 0)) > point:
                self.alone = None
            else:
                assert named(self.steps[-1]) == {seq}

    def decide(self) -> Decision:
        purses = dict(self.scheduler.statistics(self.now).purses)
        states = {seq: self.state(seq) for seq in self.live}
        decision = super().decide()
        self.gave(decision)
        self.asking_again_says_nothing_new(decision)
        self.all_can_end()
        self.figures_hold()
        self.somebody_runs()
        self.displacements_have_their_reasons(states, purses)
        # What was known when it came may be gone: until it starts, it counts by the former.
        self.known |= {opening.seq: opening.known for opening in decision.opens}
        self.left |= {opening.seq: self.asked[opening.seq].prompt - opening.known for opening in decision.opens}
        return decision

    def _deliver(self, fact: FromEngine) -> None:
        match fact:
            case Took(n):
                self.in_force = n
            case ChunkRead(seq, position):
                self.left[seq] = self.asked[seq].prompt - position
                self.has_run(seq)
            case Progress(seq, chunk, done, total):
                self.left[seq] = self._left_in(chunk, done, total, seq)
                self.has_run(seq)
            case Decoded(_, rows, _, again):
                for seq in (*again, *(row.seq for row in rows)):
                    self.has_run(seq)
                for seq in again:
                    self.again[seq] -= 1
            case SwappedOut() | SwappedIn():
                self.on_their_way[fact.seq] -= len(fact.pages)
        super()._deliver(fact)
        for seq in self.live:
            stands = len(self.tokens.get(seq, ())), self.asked[seq].prompt - self.left.get(seq, self.asked[seq].prompt)
            self.stands[seq] = self._whole_chunks(stands, seq)

    def _left_in(self, chunk: int, done: int, total: int, seq: Seq) -> int:
        # Of the first chunk only what was not known is read.
        start = max(chunk * self.work.chunk_tokens, self.known.get(seq, 0))
        prompt = self.asked[seq].prompt
        tokens = min(prompt, (chunk + 1) * self.work.chunk_tokens) - start
        return prompt - start - tokens * done // total

    def _whole_chunks(self, stands: tuple[int, int], seq: Seq) -> tuple[int, int]:
        written, read = stands
        prompt = self.asked[seq].prompt
        return written, read if read == prompt else read - read % self.work.chunk_tokens

    def has_run(self, seq: Seq) -> None:
        if self.in_force >= self.placed[seq]:
            self.ran[seq] += 1

    def gave(self, decision: Decision) -> None:
        for opening in decision.opens:
            self.held[opening.seq] = len(opening.pages)
        for grant in decision.grants:
            self.held[grant.seq] += len(grant.pages)
        for move in decision.moves:
            self.on_their_way[move.seq] = self.on_their_way.get(move.seq, 0) + len(move.pages)
        # Moves are cut, so that they don't hold up for long those that could run.
        assert self.engine.moved <= 2 * self.settings.max_running + 2

    def all_can_end(self) -> None:
        """R7: one after another, each with its worst case, however all that others hold is moved."""
        held = {seq: self.held[seq] for seq in self.live if seq in self.held and self.state(seq) != "queued"}
        free = self.pages + max(0, self.slots - 1) - sum(held.values())
        rests = {
            seq: self.work.pages_for(self.asked[seq].prompt + self.asked[seq].max_tokens) - held[seq] for seq in held
        }
        for seq in sorted(rests, key=rests.__getitem__):
            assert rests[seq] <= free, "somebody may never end"
            free += held[seq]

    def asking_again_says_nothing_new(self, decision: Decision) -> None:
        assert self.scheduler.decide(self.now) == Decision(wake_at=decision.wake_at)

    def figures_hold(self) -> None:
        now = self.scheduler.statistics(self.now)
        assert now.running <= now.max_running
        assert now.states.get("reading", 0) <= 1
        assert now.pages_free + now.pages_held == now.pages_total
        assert now.pages_held <= now.pages_reserved
        assert self.slots or now.pages_reserved <= now.pages_total
        assert now.pages_cached <= now.pages_free
        assert now.pages_held <= now.pages_total
        assert 0 <= now.slots_free <= now.slots_total == self.slots
        assert sum(now.states.values()) == len(self.live)
        overrun = self.work.read_s(self.work.chunk_tokens) + self.settings.finish_tokens * self.work.step_s
        burst = self.settings.pass_burst_s
        assert all(-burst - overrun - TINY <= purse <= burst for purse in now.purses.values())
        for before, seq in enumerate(sorted(self.live, key=self.rank)):
            figures = self.scheduler.figures(seq, self.now)
            assert figures is not None
            assert figures.state == self.state(seq)
            assert figures.ahead == (before if figures.state == "queued" else 0)
            parts = figures.queue_s + figures.read_s + figures.parked_s + figures.decode_s
            assert abs(figures.total_s - parts) < TINY
            assert abs(figures.parked_s - sum(figures.parked_s_by.values())) < TINY
            assert figures.parked_s_by.keys() == figures.parks.keys()
            assert abs(figures.total_s - (self.now - self.asked[seq].arrived)) < TINY

    def somebody_runs(self) -> None:
        if self.live:
            newest = self.steps[-1] if self.steps else Step(0)
            # Pages are on their way for those that run, or will be once the engine has let go of whose they are.
            moves = any(self.on_their_way.get(seq) for seq in self.live) or self.in_force < newest.n
            assert newest.decode or newest.read is not None or moves, "idle with work to do"

    def all_have_one_whole_end(self) -> None:
        """Once nobody is left."""
        for seq, asked in self.asked.items():
            tokens, end = self.tokens.get(seq, []), self.ended[seq]
            assert tokens == list(range(1, len(tokens) + 1)), "tokens lost, or sent twice"
            assert end.figures.written_tokens == len(tokens)
            if end.figures.state == "done" and end.outcome == Completed("length"):
                assert len(tokens) == asked.max_tokens
                assert end.figures.read_tokens == asked.prompt

    def displacements_have_their_reasons(self, states: dict[Seq, str | None], purses: dict[int, float]) -> None:
        new = {seq: self.news(seq) for seq in self.live}
        taken = self.rows_taken(states, new)
        changes = [(seq, change) for seq, several in new.items() for change in several]
        # Who takes a place may have to leave it at once, for want of pages.
        takers = [(seq, change.reason) for seq, change in changes if not change.state.parked]
        parked = {seq: change.reason for seq, change in changes if change.state.parked and change.reason in STARTS}
        placed = {seq: c[-1].reason for seq, c in new.items() if c and not c[-1].state.parked}
        self.suspects_run_alone(placed)
        assert not parked or self.settings.preempt != "off"
        for runs, reason in parked.items():
            assert self.ran[runs], "displaced before its first slice"
            waits = [seq for seq, why in takers if why == reason]
            assert any(self.holds(reason, seq, runs, states, purses, taken) for seq in waits)
        for seq, reason in placed.items():
            if reason in {*STARTS, "suspect"}:
                self.placed[seq], self.ran[seq], self.runs_since[seq] = self.steps[-1].n, 0, self.now
        self.age_pays_one_quantum(placed, states)
        self.waits_since |= dict.fromkeys(parked, self.now)
        waits = {seq for seq, c in new.items() if c and c[-1].state in ("queued", *PARKED)}
        # One that was parked while its last chunk was under way has waited since then.
        waits -= {seq for seq, c in new.items() if c and c[-1].reason == "prompt read"}
        self.waits_since |= dict.fromkeys(waits & self.again.keys(), self.now)
        for seq in self.live if self.settings.max_parks else ():
            parks = self.scheduler.figures(seq, self.now).parks
            assert sum(parks.get(by, 0) for by in ("short", "purse", "turn")) <= self.settings.max_parks

    def age_pays_one_quantum(self, placed: dict[Seq, str], states: dict[Seq, str | None]) -> None:
        """R5: of each priority one at a time, after it has waited for each level between."""
        for seq, reason in placed.items():
            if reason in STARTS:
                self.aged.pop(seq, None)
            if reason != "aged":
                continue
            priority = self.asked[seq].priority
            above = [self.asked[o].priority for o in self.live if self.asked[o].priority > priority and o in states]
            since = max(self.waited_since(seq), self.last_aged.get(priority, -1e9))
            assert self.now - since >= self.settings.age_every_s * min(p - priority for p in above) - TINY
            self.last_aged[priority] = self.now
            self.aged[seq] = (self.now, min(above))

    def waited_since(self, seq: Seq) -> float:
        return self.waits_since.get(seq, self.asked[seq].arrived)

    def is_protected(self, seq: Seq) -> bool:
        since, _ = self.aged.get(seq, (-1e9, 0))
        return self.now < since + self.settings.quantum_s - TINY

    def holds(
        self,
        reason: str,
        waits: Seq,
        runs: Seq,
        states: dict[Seq, str | None],
        purses: dict[int, float],
        taken: int,
    ) -> bool:
        taker, gives = self.asked[waits], self.asked[runs]
        if reason == "level":
            pressing = self.now - self.waited_since(waits) >= self.settings.turn_wait_s - TINY
            above_all = pressing and taker.priority > self.aged.get(runs, (0.0, 0))[1]
            return taker.priority > gives.priority and (above_all or not self.is_protected(runs))
        has_run = self.now - self.runs_since[runs] >= self.settings.quantum_s - TINY
        if reason == "aged":
            return taker.priority < gives.priority and states[runs] == "decoding" and has_run
        purse, burst = purses.get(gives.priority, self.settings.pass_burst_s), self.settings.pass_burst_s
        written = len(self.tokens.get(runs, ())) - self.again.get(runs, 0)
        spared = states[runs] == "decoding" and gives.max_tokens - written <= self.settings.finish_tokens
        if taker.priority != gives.priority or spared:
            return False
        if reason == "purse":
            return purse <= -burst and self.rank(waits) < self.rank(runs)
        if reason == "turn":
            has_waited = self.now - self.waited_since(waits) >= self.settings.turn_wait_s - TINY
            younger = self.rank(runs) < self.rank(waits)
            paid = purse > 0 or (states[runs] == "decoding" and self.settings.max_running > 1)
            return has_run and has_waited and (paid or not younger)
        no_row_is_free = taken >= self.settings.max_running
        shorter = 2 * self.need(waits) <= self.need(runs) if states[runs] == "reading" else no_row_is_free
        unprotected = not self.is_protected(runs)
        # One that read when it was refused a page may take another's place at once.
        reads = states[waits] in ("queued", "parked (reading)", "reading")
        return purse > 0 and reads and shorter and unprotected

    def rows_taken(self, states: dict[Seq, str | None], new: dict[Seq, tuple[Change, ...]]) -> int:
        """By those that ran before the decision, and those that it first let into rows that were free."""
        ran = sum(states[seq] in ("reading", "decoding") for seq in new)
        changes = [change for several in new.values() for change in several if change.reason in STARTS]
        return ran + sum(-1 if change.state.parked else 1 for change in changes)

    def need(self, seq: Seq) -> int:
        """Of a queued one the least that it can be."""
        asked, page = self.asked[seq], self.work.page_tokens
        return max(1, self.left.get(seq, asked.prompt - asked.alike // page * page))

    def news(self, seq: Seq) -> tuple[Change, ...]:
        history = self.scheduler.history(seq)
        new = history[self.changes.get(seq, 0) :]
        self.changes[seq] = len(history)
        return new

    def rank(self, seq: Seq) -> tuple[int, float, int]:
        asked = self.asked[seq]
        return (-asked.priority, asked.arrived, seq)


def named(step: Step) -> set[Seq]:
    return {*step.decode, *([] if step.read is None else [step.read])}
