"""Any history of opens, hits, steps, grants, moves and closes: nothing leaks or is written over, no token changes."""

from __future__ import annotations

from functools import cache
from itertools import takewhile

from drive import Drive, gone, prompt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from toy_model import BREAKS_DECODE, BREAKS_READ, GIVES_NAN, ToyModel

from strata.messages import (
    ChunkRead,
    Close,
    Closed,
    Decoded,
    Grant,
    Progress,
    Sampling,
    Seq,
    SeqFailed,
    Step,
    SwapIn,
    SwapOut,
    SwappedIn,
    SwappedOut,
    Took,
    Wants,
)

CHUNK, PAGE, PAGES = 16, 4, 400
Ask = tuple[tuple[int, ...], Sampling]

samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.9]),
    seed=st.integers(0, 3),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    logit_bias=st.sampled_from([(), (), (), ((BREAKS_DECODE, 99.0),), ((GIVES_NAN, 99.0),)]),
    ignore_eos=st.booleans(),
    max_tokens=st.integers(1, 8),
)
tails = st.sampled_from([(), (), (), (BREAKS_READ,), (GIVES_NAN,)])


def _some(places: list[int]) -> st.SearchStrategy[list[int]]:
    return st.permutations(places) | st.lists(st.sampled_from(places), unique=True) if places else st.just([])


def toy(workspaces: int) -> Drive:
    return Drive(ToyModel(), chunk=CHUNK, page=PAGE, pages=PAGES, workspaces=workspaces)


@cache
def alone(ask: Ask) -> tuple[list[int], str | None]:
    """The tokens and the error of a request that is alone in an engine."""
    drive = toy(1)
    drive.open(Seq(1), *ask)
    drive.step(read=Seq(1))
    drive.run()
    return drive.tokens(Seq(1)), drive.error(Seq(1))


class Walk(RuleBasedStateMachine):
    """The dispatcher's side: it knows what it asked for and what it was told, and checks one against the other."""

    @initialize(workspaces=st.integers(1, 3))
    def start(self, workspaces: int) -> None:
        self.drive = toy(workspaces)
        self.workspaces = workspaces
        self.asked: dict[Seq, Ask] = {}
        self.live: set[Seq] = set()
        self.told: list[Step] = []
        self.in_force: Step | None = None
        self.heard = 0
        self.cache: dict[tuple[int, ...], int] = {}
        """The page that ends each beginning of a prompt that was read."""
        self.known: dict[Seq, int] = {}
        """How many of its pages were cached when it was opened."""

    # -- what the dispatcher may do ---------------------------------------------------------------------------------

    @rule(length=st.integers(1, 40), tail=tails, sampling=samplings, hit=st.sampled_from([10, 10, 10, 3, 1, 0]))
    def open(self, length: int, tail: tuple[int, ...], sampling: Sampling, hit: int) -> None:
        """Mostly with the same beginning, so that what others have read is known, as much of it as the ledger likes."""
        seq = Seq(len(self.asked) + 1)
        tokens = (*prompt(int(seq % 4 == 3), length), *tail)
        self.asked[seq] = (tokens, sampling)
        self.live.add(seq)
        hit = self._cached(tokens)[:hit]
        self.known[seq] = len(hit)

        self.drive.open(seq, tokens, sampling, cached=hit, hold=0)

    def _cached(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """The longest beginning that is cached, but for the last token."""
        ends = range(PAGE, len(tokens), PAGE)
        return tuple(takewhile(lambda page: page is not None, (self.cache.get(tokens[:end]) for end in ends)))

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        if self.cache:
            del self.cache[data.draw(st.sampled_from(sorted(self.cache)))]
            self._keep()

    def _keep(self) -> None:
        self.drive.kept = set(self.cache.values())

    @rule(data=st.data(), tokens=st.integers(1, 30))
    def grant(self, data: st.DataObject, tokens: int) -> None:
        seq = data.draw(self._anybody())
        if seq in self.live and len(self.drive.free) > tokens:
            self.drive.grant(seq, tokens)
        else:
            self.drive.tell(Grant(seq, ()))

    @rule(data=st.data(), late=st.integers(-3, 0), share=st.floats(0.1, 0.9), gap=st.sampled_from([0.0, 0.03]))
    def step(self, data: st.DataObject, late: int, share: float, gap: float) -> None:
        decode = data.draw(st.lists(self._anybody(), max_size=4))
        read = data.draw(st.none() | self._anybody())
        until = data.draw(st.none() | st.integers(1, 3).map(CHUNK.__mul__))
        # Mostly a newer one; now and then one that comes late or twice.
        n = self._newest() + 1 if late > -3 else max(self._newest() - 1, 0)
        self._tell_step(Step(n, tuple(decode), read, until, share, gap))

    def _newest(self) -> int:
        return max((step.n for step in self.told), default=0)

    def _tell_step(self, step: Step) -> None:
        self.told.append(step)
        self.drive.tell(step)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), times=st.integers(1, 12))
    def let_one_run(self, data: st.DataObject, times: int) -> None:
        """With all the pages that it can need: what comes by chance rarely goes far."""
        seq = data.draw(st.sampled_from(sorted(self.live)))
        self._tell_step(Step(self._newest() + 1, (seq,), seq))
        self.drive.swap_in(seq, self.drive.can_come_back(seq))
        lacking = len(self.asked[seq][0]) + self.asked[seq][1].max_tokens - PAGE * len(self.drive.places[seq])
        if lacking > 0 and lacking < PAGE * len(self.drive.free):
            self.drive.grant(seq, lacking)
        self.advance(times)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def swap_out(self, data: st.DataObject) -> None:
        """Some of its pages, or all, in any order."""
        seq = data.draw(st.sampled_from(sorted(self.live)))
        pages = data.draw(_some(self.drive.can_leave(seq)))
        self.drive.swap_out(seq, pages[: len(self.drive.free_slots)])

    @precondition(lambda self: any(self.drive.away.values()))
    @rule(data=st.data())
    def swap_in(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(seq for seq, slots in self.drive.away.items() if slots)))
        self.drive.swap_in(seq, data.draw(_some(self.drive.can_come_back(seq))))

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        seq = data.draw(self._anybody())
        self._hear()
        self.drive.tell(Close(seq))
        assert self.drive.facts[self.heard :] == ([Closed(seq)] if seq in self.live else [])
        self._hear()

    @rule(times=st.integers(1, 12))
    def advance(self, times: int) -> None:
        for _ in range(times):
            self.drive.model.pages_written.clear()
            owned = {seq: set(places[self.known[seq] :]) for seq, places in self.drive.places.items()}
            coming, heard = self._coming(), self.heard
            self.drive.advance()
            self._check_pages_written(owned, coming, heard)
            self._hear()

    def _coming(self) -> set[int]:
        """Pages to which something is being copied back."""
        return {page for move in self.drive.moving if isinstance(move, SwapIn) for page in move.pages}

    def _anybody(self) -> st.SearchStrategy[Seq]:
        """Those that live, those that are gone, and one that never was."""
        return st.integers(1, len(self.asked) + 1).map(Seq)

    # -- what must hold ---------------------------------------------------------------------------------------------

    def _check_pages_written(self, owned: dict[Seq, set[int]], coming: set[int], heard: int) -> None:
        """Only pages of those whose slice or row it was, and none that was known; or those that come back."""
        ran = set()
        for fact in self.drive.facts[heard:]:
            if isinstance(fact, Decoded):
                ran.update(row.seq for row in fact.rows)
            elif isinstance(fact, Progress | ChunkRead | SeqFailed):
                ran.add(fact.seq)
        allowed = coming.union(*(owned.get(seq, set()) for seq in ran))
        assert self.drive.model.pages_written <= allowed

    def _hear(self) -> None:
        for fact in self.drive.facts[self.heard :]:
            self._check(fact)
            self.live.difference_update(gone(fact))
        self.heard = len(self.drive.facts)

    def _check(self, fact: object) -> None:
        match fact:
            case Took():
                newest = max(step.n for step in self.told)
                assert fact.n == newest
                assert self.in_force is None or fact.n > self.in_force.n
                self.in_force = next(step for step in self.told if step.n == fact.n)
            case Decoded():
                assert self.in_force is not None
                assert fact.n == self.in_force.n
                assert all(row.seq in self.live for row in fact.rows)
                assert fact.seconds == 0 or {row.seq for row in fact.rows} <= self._allowed()
                assert all(self._is_here(row.seq) for row in fact.rows)
            case ChunkRead():
                assert fact.seq in self.live
                assert self._is_here(fact.seq)
                self._remember(fact)
            case Progress() | Wants():
                assert fact.seq in self.live
                assert self._is_here(fact.seq)
            case SwappedOut() | SwappedIn():
                assert fact.seq in self.live
            case SeqFailed():
                assert alone(self.asked[fact.seq])[1] is not None

    def _remember(self, read: ChunkRead) -> None:
        """Caches what was read, unless its sequence has ended in the same breath."""
        tokens, pages = self.asked[read.seq][0], self.drive.held.get(read.seq, [])
        for place, page in enumerate(pages[: read.position // PAGE]):
            self.cache.setdefault(tokens[: (place + 1) * PAGE], page)
        self._keep()

    def _is_here(self, seq: Seq) -> bool:
        """Whether all of its pages are on the device, or it has ended."""
        return not self.drive.away.get(seq)

    def _allowed(self) -> set[Seq]:
        assert self.in_force is not None
        return {*self.in_force.decode, self.in_force.read}

    @precondition(lambda self: hasattr(self, "drive"))
    @invariant()
    def nothing_leaks(self) -> None:
        usage = self.drive.engine.usage()
        assert usage.sequences == len(self.live)
        assert usage.pages == len(self._coming().union(*self.drive.held.values()))
        leaving = (move.slots for move in self.drive.moving if isinstance(move, SwapOut))
        assert usage.slots == len(set().union(*self.drive.away.values(), *leaving))
        assert usage.moves == len(self.drive.moving)
        assert usage.half_chunks + usage.workspaces_free == self.workspaces
        assert usage.half_chunks == self.drive.model.open_reads

    @precondition(lambda self: hasattr(self, "drive"))
    @invariant()
    def tokens_are_those_of_an_undisturbed_run(self) -> None:
        for seq, ask in self.asked.items():
            expected, error = alone(ask)
            tokens = self.drive.tokens(seq)
            assert tokens == expected[: len(tokens)]
            assert not self.drive.ended(seq) or (tokens == expected and error is None)

    def teardown(self) -> None:
        """Whoever is left can be brought to its end, in any order."""
        if not hasattr(self, "drive"):
            return
        self.drive.run_moves()
        for seq in self.live:
            self.drive.swap_in(seq)
        for seq in sorted(self.live, reverse=True):
            tokens, sampling = self.asked[seq]
            self.drive.grant(seq, len(tokens) + sampling.max_tokens)
            self.drive.tell(Step(len(self.told) + 1000 + len(self.asked) - seq, read=seq))
            self.drive.run(lambda seq=seq: bool(self.drive.ended(seq) or self.drive.error(seq)))
            assert (self.drive.tokens(seq), self.drive.error(seq)) == alone(self.asked[seq])
        usage = self.drive.engine.usage()
        assert (usage.sequences, usage.pages, usage.half_chunks, usage.slots, usage.moves) == (0, 0, 0, 0, 0)


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
