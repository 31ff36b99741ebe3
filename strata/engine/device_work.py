"""Beginning, dropping and decoding: what is asked of the model, so that a fault of one sequence stays its own.

A room of its own because all that can raise is called from here and from a half-done chunk, and nothing may leak or
spread when it does.  Knows no step and no message.
"""

from __future__ import annotations

import collections.abc
import logging
from typing import Final

import numpy as np
from attrs import frozen

from strata.engine.holdings import Workspaces
from strata.engine.sampling import draw_of
from strata.engine.sequence import HalfChunk, Sequence
from strata.errors import DeviceFault
from strata.messages import Sampling
from strata.models.architecture import Answer, DecodeRow, Model

_log: Final = logging.getLogger(__name__)


@frozen
class _Nobody:
    """A sequence of no request, in the first page: who gets that page writes over what is there."""

    pages: tuple[int, ...] = (0,)


def rehearse(model: Model, workspaces: Workspaces) -> None:
    """Reads a token and decodes one, before anything is opened.  Raises what the model does."""
    workspace, nobody, likeliest = workspaces.take(), _Nobody(), draw_of(Sampling(temperature=0.0))
    for _ in model.read(nobody, 0, np.zeros(1, np.int64), workspace):
        pass
    model.decode([DecodeRow(nobody, token=0, position=1, draw=likeliest)])
    workspaces.give_back(workspace)


def begin_chunk(model: Model, workspaces: Workspaces, sequence: Sequence) -> HalfChunk:
    """The sequence's next chunk, with a workspace of its own; no slice of it has run.  Raises what the model does."""
    start, end = sequence.position, sequence.chunk_end
    total = model.slices(end - start, start)
    tokens = np.asarray(sequence.prompt[start:end], dtype=np.int64)
    workspace = workspaces.take()
    try:
        slices = model.read(sequence, start, tokens, workspace)
    except BaseException:
        workspaces.give_back(workspace)
        raise
    index = sequence.chunk_index
    sequence.chunk = HalfChunk(index=index, start=start, end=end, total=total, slices=slices, workspace=workspace)
    return sequence.chunk


def drop_chunk(workspaces: Workspaces, sequence: Sequence) -> None:
    """Forgets the chunk, half done or done, and gives its workspace back."""
    chunk = sequence.chunk
    if chunk is None:
        return
    sequence.chunk = None
    try:
        chunk.slices.close()
    except Exception:
        _log.exception("a model's generator raised when it was closed (sequence %s)", sequence.seq)
    workspaces.give_back(chunk.workspace)


def decode(model: Model, windows: collections.abc.Sequence[list[DecodeRow]]) -> list[list[Answer] | Exception]:
    """For each sequence's rows the logits after them, or what the model raised for its first.

    A DeviceFault or a MemoryError is raised.  If the step raises another, nobody knows for which row: then each
    sequence's first row is computed alone, which gives the same bits, and its others, which were only offered, are not.
    """
    try:
        answers = iter(model.decode([row for rows in windows for row in rows]))
        return [[next(answers) for _ in rows] for rows in windows]
    except (DeviceFault, MemoryError):
        raise
    except Exception as error:
        if [len(rows) for rows in windows] == [1]:
            return [error]
        return [_decode_alone(model, rows[0]) for rows in windows]


def _decode_alone(model: Model, row: DecodeRow) -> list[Answer] | Exception:
    try:
        return list(model.decode([row]))
    except (DeviceFault, MemoryError):
        raise
    except Exception as error:
        return error
