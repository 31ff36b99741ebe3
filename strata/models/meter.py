"""What a chat template may spend: steps and characters, charged before they are spent.

A room of its own because a template is somebody else's program: what each of its operations can cost at most is said
here and nowhere else.  Knows values and their sizes; no Jinja.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from attrs import define

LARGEST_NUMBER: Final = 1000
"""That a filter or a format may be given: a width, a count.  Each is charged for as many characters."""

_LARGEST_BITS: Final = 256
_LONG_NUMBER: Final = re.compile(r"\d{4}|\*")


class OverBudget(Exception):
    """The template has spent what it may, or does what could not be bounded."""


@define
class Budget:
    """What is left."""

    steps: int
    characters: int

    def charge(self, steps: int = 1, characters: int = 0) -> None:
        self.steps -= steps
        self.characters -= characters
        if self.steps < 0:
            raise OverBudget("the chat template has not ended after all its steps")
        if self.characters < 0:
            raise OverBudget("the chat template makes far more text than the messages have")


_current: ContextVar[Budget] = ContextVar("budget")


@contextmanager
def spending(budget: Budget) -> Iterator[None]:
    """All charges inside go to this budget."""
    token = _current.set(budget)
    try:
        yield
    finally:
        _current.reset(token)


def charge(steps: int = 1, characters: int = 0) -> None:
    """Raises OverBudget."""
    _current.get().charge(steps, characters)


def charge_whole(value: Any) -> None:
    """For every character and item in it, at any depth: what its text takes, at least.

    One that is held twice counts twice, as it does in a text; the walk itself is paid for on the way.
    """
    charge(1, _characters(value))
    if isinstance(value, Mapping):
        for pair in value.items():
            charge_whole(pair)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            charge_whole(item)


def charge_shallow(value: Any) -> None:
    """For its characters, or for its items but not for what is in them."""
    items = len(value) if isinstance(value, list | tuple | set | frozenset | Mapping | range) else 0
    charge(1 + items, _characters(value))


def _characters(value: Any) -> int:
    # A number is written with 32 characters at most here, or it was refused when it was made.
    return len(value) if isinstance(value, str | bytes) else 32


# -- operators ------------------------------------------------------------------------------------------------------


def charge_operator(operator: str, left: Any, right: Any) -> None:
    """Before `left operator right`."""
    charge()
    if isinstance(left, str) and operator == "%":
        charge_format(left, right)
    elif all(isinstance(side, int) for side in (left, right)) and operator != "**":
        if left.bit_length() + right.bit_length() > _LARGEST_BITS:
            raise OverBudget("the chat template makes numbers that are too large")
    elif operator == "**" or (operator == "*" and not all(isinstance(side, int | float) for side in (left, right))):
        raise OverBudget(f"the chat template uses {operator} in a way that is not allowed")
    else:
        charge_shallow(left)
        charge_shallow(right)


def charge_format(pattern: str, *values: Any) -> None:
    """Before values are written into a pattern, of `%` or of `str.format`."""
    if _LONG_NUMBER.search(pattern) or "{" in re.sub(r"\{[^{}]*\}", "", pattern):
        raise OverBudget("the chat template formats in a way that is not allowed")
    fields = pattern.count("%") + pattern.count("{")
    charge(1 + fields, len(pattern) + LARGEST_NUMBER * fields)
    for value in values:
        for _ in range(max(1, fields)):
            charge_whole(value)


# -- filters --------------------------------------------------------------------------------------------------------

LOOKS: Final = frozenset(("length", "count", "first", "last", "default", "d", "abs", "attr", "items", "int", "float"))
"""Filters that look at their value and copy none of it."""

REFUSED: Final = ("pprint", "random", "urlize", "wordwrap", "xmlattr")
"""Filters whose cost is hard to bound, or whose result is another each time; no chat template needs them."""


def charge_filter(name: str, value: Any, *others: Any) -> None:
    """Before the filter works on `value`; the others are its arguments."""
    charge()
    if name in LOOKS:
        return
    rule = _RULES.get(name)
    if rule is not None:
        rule(value, *others)
        return
    charge_shallow(value)
    _charge_widths(value, others)


def _charge_widths(value: Any, others: tuple[Any, ...]) -> None:
    """Each line may get each number as a width, and each text as a prefix."""
    width = 0
    for other in others:
        if isinstance(other, int) and abs(other) > LARGEST_NUMBER:
            raise OverBudget(f"the chat template uses the number {other!r:.20} where {LARGEST_NUMBER} is the most")
        width += abs(other) if isinstance(other, int) else _characters(other)
    lines = 1 + len(value.splitlines()) if isinstance(value, str) else 1
    charge(1 + width // 32, lines * width)


def charge_replace(value: Any, old: Any = "", new: Any = "", *_: Any) -> None:
    charge_whole(value)
    if isinstance(value, str) and isinstance(old, str):
        charge(1, value.count(old) * _characters(new))
    else:
        charge(1, LARGEST_NUMBER * _characters(new))


def charge_join(value: Any, between: Any = "", *_: Any) -> None:
    charge_whole(value)
    items = len(value) if hasattr(value, "__len__") else 0
    charge(1 + items, items * _characters(between))


def _charge_sum(value: Any, *others: Any) -> None:
    charge_shallow(value)
    if not all(isinstance(other, int | float | str | None) for other in others):
        raise OverBudget("the chat template sums up what are no numbers")


def _charge_json(value: Any, *others: Any) -> None:
    before = _current.get().steps
    charge_whole(value)
    # A line of it is indented as deep as it lies, so at most as often as there are items.
    items = before - _current.get().steps
    widths = sum(other if isinstance(other, int) else _characters(other) for other in others if other is not None)
    charge(1, 8 * items + abs(widths) * items * items)


_RULES: Final[Mapping[str, Callable[..., None]]] = {
    "format": charge_format,
    "join": charge_join,
    "replace": charge_replace,
    "string": charge_whole,
    "sum": _charge_sum,
    "tojson": _charge_json,
    "escape": charge_whole,
    "e": charge_whole,
    "forceescape": charge_whole,
    "trim": charge_whole,
}

# -- methods --------------------------------------------------------------------------------------------------------

TEXT_METHODS: Final = frozenset(
    (
        *(
            "capitalize",
            "count",
            "endswith",
            "find",
            "format",
            "index",
            "isalnum",
            "isalpha",
            "isdigit",
            "islower",
        ),
        *(
            "isnumeric",
            "isspace",
            "isupper",
            "join",
            "lower",
            "lstrip",
            "partition",
            "removeprefix",
        ),
        *(
            "removesuffix",
            "replace",
            "rfind",
            "rindex",
            "rpartition",
            "rsplit",
            "rstrip",
            "split",
            "splitlines",
        ),
        *("startswith", "strip", "swapcase", "title", "upper"),
    )
)
"""The methods of a text that a template may call.  The others make texts of any length out of a number."""


def charge_call(called: Any, *values: Any) -> None:
    """Before something is called with these values: a text's method, a macro, a function."""
    charge(1 + len(values))
    # A sandbox hands out `format` in a wrapper.
    method = getattr(called, "__wrapped__", called)
    text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if not isinstance(text, str):
        return
    if name in ("format", "format_map"):
        charge_format(text, *values)
    elif name == "replace":
        charge_replace(text, *values)
    elif name == "join":
        charge_join(*values[:1], text)
    else:
        charge(1, len(text))
