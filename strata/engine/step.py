"""What may run now: the step message in force, and the credit by which reading and decoding share the time.

A room of its own because these are the two rules that the engine follows by itself between messages.  Plain values:
no model, no sequence, no clock.
"""

from __future__ import annotations

from strata.messages import Seq, Step


class Credit:
    """Time that reading may take beside decoding (R4).  Seconds; a slice runs iff it is above 0, and may overdraw.

    After a decode step of d seconds: credit = min(credit, 0) + max(d x s / (1 - s), gap).  So no unused time is kept,
    and what a slice took too much is paid back.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def __repr__(self) -> str:
        return f"<Credit {self.seconds:.4f} s>"

    @property
    def allows_a_slice(self) -> bool:
        return self.seconds > 0

    def clear(self) -> None:
        """Nobody decodes or nobody reads: there is nothing to share."""
        self.seconds = 0.0

    def decoded(self, seconds: float, step: Step) -> None:
        share = step.read_share
        # A share of 1 is all of the time: decoding waits until nobody reads.
        earned = float("inf") if share >= 1 else seconds * share / (1 - share)
        self.seconds = min(self.seconds, 0.0) + max(earned, step.gap_s)

    def read(self, seconds: float) -> None:
        self.seconds -= seconds


class Steps:
    """The step in force, and a newer one that is not in force yet.  The newest number counts; late ones are dropped."""

    def __init__(self) -> None:
        self.current: Step | None = None
        self.waiting: Step | None = None
        self._newest = -1

    def tell(self, step: Step) -> None:
        if step.n > self._newest:
            self._newest = step.n
            self.waiting = step

    def take(self) -> Step:
        """The waiting step is in force from now on."""
        assert self.waiting is not None
        self.current, self.waiting = self.waiting, None
        return self.current


def allowed(step: Step) -> tuple[Seq, ...]:
    """Whom the step lets run, each once."""
    return tuple(dict.fromkeys(step.decode if step.read is None else (*step.decode, step.read)))
