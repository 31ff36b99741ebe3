"""One hash for each part of a sequence's state, so that two runs can be compared bit for bit.

A room of its own because it lists what "the state of a sequence" is.  The model names its own parts (keys and values,
and whatever another architecture keeps); what the engine keeps is named here.  Knows no schedule: equal states give
equal fingerprints, however they came about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

import numpy as np

from strata.engine.sequence import Sequence

_DIGEST_BYTES = 16

Parts = Mapping[str, Iterable[bytes | memoryview]]


def engine_parts(sequence: Sequence) -> Parts:
    """The parts that the engine itself keeps, as bytes; `drafter` where it has one.

    `chunk` says how far the half-done chunk is; what is in its workspace is the model's, and a scratch until it ends.
    How much is offered is no part: it follows the schedule, and decides no token.
    """
    chunk = sequence.chunk
    half = "none" if chunk is None else f"{chunk.start}..{chunk.end}: {chunk.done} of {chunk.total}"
    parts = {
        "tokens": (np.asarray((*sequence.prompt, *sequence.repeated), dtype="<i8").tobytes(),),
        "position": (str(sequence.position).encode(),),
        "sampler": (repr(sequence.sampling).encode(), str(len(sequence.repeated)).encode()),
        "chunk": (half.encode(),),
    }
    return parts if sequence.drafter is None else {**parts, "drafter": (sequence.drafter.state(),)}


def digests(*parts: Parts) -> dict[str, str]:
    """Hex BLAKE2b of each part."""
    return {name: _digest(pieces) for some in parts for name, pieces in some.items()}


def _digest(pieces: Iterable[bytes | memoryview]) -> str:
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
