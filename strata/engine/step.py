"""What may run now: the step message in force, and the credit by which reading and decoding share the time.

A room of its own because these are the two rules that the engine follows by itself between messages.  Plain values:
no model, no sequence, no clock.
"""

from __future__ import annotations

from strata.messages import Seq, Step


class Credit:
    """Time that reading may take beside decoding (R4).  Seconds; a slice runs iff it is above 0, and may overdraw.

    After a decode step of d seconds: credit = min(credit, 0) + max(d x s / (1 - s), gap).  So no unused time is kept,
    and what a slice took too much is paid back.  One that comes to read beside decoders has what the step before it
    earns, and does not wait for another; but only if no slice ran since, or readers in a row would hold up decoding.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._unread_step_s: float | None = None
        """Of the last decode step, while no slice has run since."""
        self._shared = False

    def __repr__(self) -> str:
        return f"<Credit {self.seconds:.4f} s>"

    @property
    def allows_a_slice(self) -> bool:
        return self.seconds > 0

    def clear(self) -> None:
        """Nobody decodes or nobody reads: there is nothing to share."""
        self.seconds = 0.0
        self._shared = False

    def share(self, step: Step) -> None:
        """Somebody reads beside decoders."""
        if not self._shared and self._unread_step_s is not None:
            self.seconds = _earned(self._unread_step_s, step)
        self._shared = True

    def decoded(self, seconds: float, step: Step) -> None:
        self.seconds = min(self.seconds, 0.0) + _earned(seconds, step)
        self._unread_step_s = seconds

    def read(self, seconds: float) -> None:
        self.seconds -= seconds
        self._unread_step_s = None


def _earned(seconds: float, step: Step) -> float:
    """What a decode step of so many seconds lets reading take."""
    share = step.read_share
    # A share of 1 is all of the time: decoding waits until nobody reads.
    return max(float("inf") if share >= 1 else seconds * share / (1 - share), step.gap_s)


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
