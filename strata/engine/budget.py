"""How much memory the keys and values get: how many pages, an arena of how many, and how long a sequence can be.

A room of its own because this is computed once, here, and everybody else goes by what `Ready` says.  Knows of the
model its sizes only; how much memory is free is the device's to say.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from attrs import frozen

from strata.config import EngineSettings
from strata.errors import ConfigError
from strata.models.architecture import Model

_MIB: Final = 2**20
_SHARE_OF_FREE: Final = 4
"""A quarter of what is free: the machine is not ours alone.  A card is."""
_ARENA_UNASKED_MIB: Final = 1024

LONGEST_UNASKED: Final = 1 << 20
"""The longest context (tokens) that is served where none is set.  Files can state any; each token of it costs time and
memory at the start, even if no sequence is ever so long."""


@frozen
class Budget:
    """What the engine allocates: `pages` of `page_tokens`, for steps of `rows` and sequences of up to `context` tokens.

    `slots`: pages that the host arena holds.
    """

    pages: int
    page_tokens: int
    context: int
    rows: int
    slots: int = 0


def plan(
    model: Model, settings: EngineSettings, *, max_running: int, free_bytes: int, host_bytes: int | None = None
) -> Budget:
    """The pages and the context that the settings and the free memory (with the weights loaded) allow.

    `host_bytes`: what is free for the arena where the pages lie on a card, and have all of
    `free_bytes`; None: they share it.

    Raises ConfigError, which says what to do.
    """
    trained = model.config.context
    if settings.context is not None and settings.context > trained:
        raise ConfigError("context", f"{settings.context} is more than the {trained} that the model was trained for")
    context = settings.context or min(trained, LONGEST_UNASKED)
    per_page = model.bytes_per_page(settings.page_tokens)
    useful = max_running * _pages(context, settings)
    # A row for each that decodes, and for one that decodes alone those of the tokens that are offered with its own.
    rows = max(max_running, 1 + settings.speculate)
    beside = partial(_beside_pages, model, settings, rows=rows)
    own = host_bytes is not None
    spare = free_bytes - beside(context=context if own else 0)
    pages = _affordable(settings, useful, per_page, spare, 1 if own else _SHARE_OF_FREE)
    room = pages * settings.page_tokens
    if settings.context is not None and room < context:
        needed = _mib(_pages(context, settings) * per_page)
        raise ConfigError("context", f"{context} tokens need {needed} for keys and values; {room} fit: set kv_mib")
    context = min(context, room)
    whole = pages * per_page + beside(context=context)
    if whole > free_bytes:
        raise ConfigError("kv_mib", f"with it {_mib(whole)} are needed and {_mib(free_bytes)} are free: lower it")
    slots = _slots(settings, pages, per_page, free_bytes - whole if host_bytes is None else host_bytes)
    return Budget(pages, settings.page_tokens, context, rows, slots)


def _beside_pages(model: Model, settings: EngineSettings, *, rows: int, context: int) -> int:
    """Bytes of all that the engine takes at its start but the pages."""
    workspaces = settings.max_half_read * model.bytes_per_workspace(settings.chunk_tokens)
    return workspaces + model.bytes_beside_pages(context, rows)


def _affordable(settings: EngineSettings, useful: int, per_page: int, free_bytes: int, share: int) -> int:
    if settings.kv_mib is None:
        pages = min(useful, free_bytes // share // per_page)
    else:
        if settings.kv_mib * _MIB > free_bytes:
            free = f"the {_mib(max(0, free_bytes))} that are free beside rows and workspaces"
            raise ConfigError("kv_mib", f"{settings.kv_mib} MiB is more than {free}")
        pages = settings.kv_mib * _MIB // per_page
    if pages < 1:
        raise ConfigError(
            "kv_mib", f"not even one page of {_mib(per_page)} fits: raise it, lower max_running, or free memory"
        )
    return pages


def _slots(settings: EngineSettings, pages: int, per_page: int, left_bytes: int) -> int:
    """How large an arena is.  Unasked, no larger than the device: who waits there must come back to it."""
    if settings.arena_mib is None:
        affordable = min(_ARENA_UNASKED_MIB * _MIB, left_bytes // _SHARE_OF_FREE)
        return min(pages, affordable // per_page)
    if settings.arena_mib * _MIB > left_bytes:
        left = f"the {_mib(left_bytes)} that are free beside pages, rows and workspaces"
        raise ConfigError("arena_mib", f"{settings.arena_mib} MiB is more than {left}: lower it, or set kv_mib")
    return settings.arena_mib * _MIB // per_page


def _pages(tokens: int, settings: EngineSettings) -> int:
    return -(-tokens // settings.page_tokens)


def _mib(size: int) -> str:
    return f"{size / _MIB:,.1f} MiB"
