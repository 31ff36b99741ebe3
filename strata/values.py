"""What a setting's value can be: numbers between two ends, words of a list, keys, names, files.  Knows no setting.

Each check is an attrs validator: it raises ConfigError with the name of the setting, whatever it is given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from attrs import Attribute

from strata.addresses import can_listen_at, host_of, origin_of
from strata.errors import ConfigError

MOST: Final = 1_000_000_000
"""Of anything that is counted, MiB too: as far as what a system is told of it goes."""
Check: TypeAlias = Callable[[Any, "Attribute[Any]", Any], None]


def number(low: float, high: float, *, open_low: bool = False, open_high: bool = False) -> Check:
    """A finite number between the two; `open_` leaves the end itself out."""

    def check(_instance: Any, attribute: Attribute[Any], value: Any) -> None:
        finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
        if not finite or isinstance(value, bool):
            raise ConfigError(attribute.name, f"{value!r} is not a finite number")
        if value < low or value > high or (open_low and value == low) or (open_high and value == high):
            ends = "more than" if open_low else "at least", "less than" if open_high else "at most"
            span = f"{ends[0]} {low:g} and {ends[1]} {high:g}"
            raise ConfigError(attribute.name, f"{_short(value)} must be {span}")

    return check


def _short(value: float) -> str:
    # Python itself refuses to write a number of more than some thousand digits.
    return str(value) if abs(value) < 10**30 else "a number of more than 30 digits"


def whole(low: int, high: int = MOST) -> Check:
    """A whole number between the two."""
    span = number(low, high)

    def check(instance: Any, attribute: Attribute[Any], value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(attribute.name, f"{value!r} is not a whole number")
        span(instance, attribute, value)

    return check


def flag(_instance: Any, attribute: Attribute[Any], value: Any) -> None:
    """Yes or no."""
    if not isinstance(value, bool):
        raise ConfigError(attribute.name, f"{value!r} is neither true nor false")


def one_of(*words: str) -> Check:
    """One of these words."""

    def check(_instance: Any, attribute: Attribute[Any], value: Any) -> None:
        if value not in words:
            raise ConfigError(attribute.name, f"{value!r} is not one of {', '.join(words)}")

    return check


def text(_instance: Any, attribute: Attribute[Any], value: Any) -> None:
    """What people can read and write: printable, and not blank."""
    if not isinstance(value, str) or not value.isprintable() or not value.strip():
        raise ConfigError(attribute.name, f"{value!r} is not printable text")


def file(_instance: Any, attribute: Attribute[Any], value: Any) -> None:
    """A path, which something may lie at."""
    # An empty one is the folder itself.
    if not isinstance(value, Path) or value == Path() or "\0" in str(value):
        raise ConfigError(attribute.name, f"{str(value) if isinstance(value, Path) else value!r} is not a file's path")


def is_key(value: Any) -> bool:
    """Whether it fits into a header as it is."""
    return isinstance(value, str) and value != "" and value.isascii() and value.isprintable() and " " not in value


def key(_instance: Any, attribute: Attribute[Any], value: Any) -> None:
    """A key that fits into a header.  Says nothing of the key itself."""
    if not is_key(value):
        raise ConfigError(attribute.name, "a key is printable ASCII without spaces, and not empty")


def host_name(_instance: Any, attribute: Attribute[Any], value: Any) -> None:
    """A name by which a client may call a server, or `*`."""
    if value != "*" and (not isinstance(value, str) or host_of(value) is None):
        raise ConfigError(attribute.name, f"{value!r} is not a host such as chat.example.org or ::1, nor *")


def listenable(_instance: Any, attribute: Attribute[Any], value: Any) -> None:
    """Where a server can listen; empty: at all addresses."""
    if value != "" and (not isinstance(value, str) or not can_listen_at(value)):
        raise ConfigError(
            attribute.name,
            f"{value!r} is neither an address nor a name, both without a port, nor unix:/path, nor fd://3",
        )


def origin(_instance: Any, attribute: Attribute[Any], value: Any) -> None:
    """`*`, or scheme, host and port as a browser sends them."""
    sent = origin_of(value) if isinstance(value, str) else None
    if value == "*" or (sent is not None and sent == value):
        return
    if sent is None:
        raise ConfigError(attribute.name, f"{value!r} is not an origin such as https://chat.example.org, nor *")
    raise ConfigError(attribute.name, f"{value!r} is not how a browser sends it: that is {sent}")


def processors(_instance: Any, attribute: Attribute[Any], value: Any) -> None:
    """Numbers and spans of processors, as `taskset` takes them."""
    parts = value.split(",") if isinstance(value, str) else [""]
    spans = [re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part) for part in parts]
    if not all(span and int(span[1]) <= int(span[2] or span[1]) for span in spans):
        raise ConfigError(attribute.name, f"{value!r} is not a list of processors such as 0-3,8")


def each(check: Check) -> Check:
    """Several values, each of which passes this check.  None of them is shown where they are of no kind at all."""

    def check_all(instance: Any, attribute: Attribute[Any], value: Any) -> None:
        if not isinstance(value, tuple):
            raise ConfigError(attribute.name, f"what is given is of type {type(value).__name__}, and it is a list")
        for one in value:
            check(instance, attribute, one)

    return check_all


def several(value: Any) -> Any:
    """A converter: one, or several separated by commas or spaces, or several.  What is none of them stays as it is."""
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, bytes | Mapping) else value


def path_of(value: Any) -> Any:
    """A converter: of text.  What is no path stays as it is."""
    return Path(value) if isinstance(value, str) else value
