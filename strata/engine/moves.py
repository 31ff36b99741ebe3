"""Moving pages between the device and the host arena: one page at a time, a move whole or not at all.

A room of its own because under a move a page has two places, and neither may be lost or kept, whatever comes between:
a close, a fault, another move.  Which page goes where is the ledger's matter.  Knows no step, and nothing of what a
page holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from attrs import define

from strata.engine.holdings import Pages
from strata.engine.sequence import Sequence
from strata.errors import SequenceFailed
from strata.messages import Seq, SwapIn, SwapOut, SwappedIn, SwappedOut
from strata.models.architecture import Model


@define
class _Move:
    sequence: Sequence
    asked: SwapOut | SwapIn
    done: int = 0
    """Pages that have been copied.  Until all are, the sequence keeps what it had."""
    seconds: float = 0.0


class Moves:
    """The moves that were asked for, in order, and what every sequence holds of pages and slots.

    A sequence's `pages` name a page that lies in slot n of the arena by the number `pages.total` + n.
    """

    def __init__(self, model: Model, pages: Pages, slots: Pages, clock: Callable[[], float]) -> None:
        self._model = model
        self._pages = pages
        self._slots = slots
        self._clock = clock
        self._moves: deque[_Move] = deque()

    def __repr__(self) -> str:
        return f"<Moves {len(self._moves)} to do, {self._slots.held} slots of {self._slots.total} held>"

    def __len__(self) -> int:
        return len(self._moves)

    @property
    def first(self) -> Sequence:
        """Whose page is next."""
        return self._moves[0].sequence

    def ask(self, sequence: Sequence, asked: SwapOut | SwapIn) -> None:
        """Takes the move on, and its places for the sequence.  Raises SequenceFailed: then nothing was taken."""
        sources, targets = self._places(asked)
        if len(sources) != len(targets) or len(set(sources)) != len(sources):
            raise SequenceFailed(f"pages are moved one to one: {asked}")
        under_way = {place for move in self._moves for place in self._places(move.asked)[0]}
        if not set(sources) <= set(sequence.pages) - under_way:
            raise SequenceFailed(f"what is moved is not the sequence's, or is being moved already: {asked}")
        match asked:
            case SwapOut(seq, pages, slots):
                self._check_alone(seq, self._pages, pages)
                self._slots.give(seq, slots)
            case SwapIn(seq, slots, pages):
                self._check_alone(seq, self._slots, slots)
                self._pages.give(seq, pages)
        self._moves.append(_Move(sequence, asked))

    def run_one(self) -> SwappedOut | SwappedIn | None:
        """Copies the next page.  The fact, if that was the last of its move.  Raises what the model does."""
        move = self._moves[0]
        started = self._clock()
        asked = move.asked
        if move.done < len(asked.pages):
            page, slot = asked.pages[move.done], asked.slots[move.done]
            if isinstance(asked, SwapOut):
                self._model.copy_out(page, slot)
            else:
                self._model.copy_in(slot, page)
            move.done += 1
        move.seconds += self._clock() - started
        return self._end(self._moves.popleft()) if move.done == len(asked.pages) else None

    def forget(self, sequence: Sequence) -> None:
        """The sequence's moves, and all that it holds or was to hold."""
        for move in [move for move in self._moves if move.sequence is sequence]:
            self._moves.remove(move)
            self._give_back(sequence.seq, self._places(move.asked)[1])
        self._give_back(sequence.seq, sequence.pages)
        sequence.pages.clear()

    def _check_alone(self, seq: Seq, ledger: Pages, sources: tuple[int, ...]) -> None:
        if any(ledger.holders(source) != {seq} for source in sources):
            raise SequenceFailed(f"what is moved is held by others too, or not at all: {sources} of {ledger}")

    def _end(self, move: _Move) -> SwappedOut | SwappedIn:
        """The sequence has the new places, and the old ones are free."""
        sequence, asked = move.sequence, move.asked
        sources, targets = self._places(asked)
        moved = dict(zip(sources, targets, strict=True))
        sequence.pages[:] = [moved.get(place, place) for place in sequence.pages]
        self._give_back(sequence.seq, sources)
        if isinstance(asked, SwapOut):
            sequence.away += len(asked.slots)
            return SwappedOut(asked.seq, asked.pages, asked.slots, move.seconds)
        sequence.away -= len(asked.slots)
        return SwappedIn(asked.seq, asked.slots, asked.pages, move.seconds)

    def _places(self, asked: SwapOut | SwapIn) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """From where to where, numbered as in a sequence's `pages`."""
        slots = tuple(self._pages.total + slot for slot in asked.slots)
        return (asked.pages, slots) if isinstance(asked, SwapOut) else (slots, asked.pages)

    def _give_back(self, seq: Seq, places: Iterable[int]) -> None:
        total = self._pages.total
        for place in places:
            if place < total:
                self._pages.take_back(seq, (place,))
            else:
                self._slots.take_back(seq, (place - total,))
