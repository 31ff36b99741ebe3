"""Who lives.  One for each runtime, none for the process; knows names and parents, starts and ends nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from strata.actors.kernel.actor import Actor, ActorInfo
from strata.errors import UnknownRequest


class Registry:
    """The living actors by id, in order of start.

    `on_ended` is called with each actor that has ended, after it left the registry: who wants to remember the ended
    ones bounds that memory itself.
    """

    def __init__(self, on_ended: Callable[[Actor[Any]], None] | None = None) -> None:
        self._living: dict[str, Actor[Any]] = {}
        self._numbers: Counter[str] = Counter()
        self._on_ended = on_ended

    def __repr__(self) -> str:
        return f"<Registry {len(self)} living>"

    def __len__(self) -> int:
        return len(self._living)

    def __contains__(self, id: str) -> bool:
        return id in self._living

    def __iter__(self) -> Iterator[Actor[Any]]:
        """The living, in order of start."""
        return iter(tuple(self._living.values()))

    def find(self, id: str) -> Actor[Any]:
        """The living actor of this id.  Raises UnknownRequest."""
        try:
            return self._living[id]
        except KeyError:
            raise UnknownRequest(f"no actor with the id {id!r} lives") from None

    def tree(self) -> tuple[ActorInfo, ...]:
        """All that live, each after its parent, siblings in order of start."""
        children: dict[str | None, list[Actor[Any]]] = {}
        for actor in self._living.values():
            # Whose parent has ended already is shown as a root until it has ended too.
            parent = actor.parent if actor.parent in self._living else None
            children.setdefault(parent, []).append(actor)
        infos: list[ActorInfo] = []
        rest = children.get(None, [])[::-1]
        while rest:
            actor = rest.pop()
            infos.append(actor.info())
            rest += children.get(actor.id, [])[::-1]
        return tuple(infos)

    def add(self, actor: Actor[Any]) -> None:
        """Take it in, and name it if it has no name.  Raises ValueError if one of its id lives."""
        if not actor.id:
            self._numbers[actor.kind] += 1
            actor.ref.id = f"{actor.kind}-{self._numbers[actor.kind]}"
        if actor.id in self._living:
            raise ValueError(f"an actor with the id {actor.id!r} lives already")
        self._living[actor.id] = actor

    def remove(self, actor: Actor[Any]) -> None:
        """It has ended."""
        del self._living[actor.id]
        if self._on_ended is not None:
            self._on_ended(actor)
