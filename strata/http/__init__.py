"""The edge: bytes on sockets become requests, and answers become bytes.  Knows the runtime by its public face only."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from strata.http.access import access_lines, to_logger
    from strata.http.app import create_app, routes
    from strata.http.arriving import Arriving
    from strata.http.listener import listen
    from strata.http.pump import PumpConnection
    from strata.http.security import check_public
    from strata.http.serving import Tls, serve

__all__ = [
    "Arriving",
    "PumpConnection",
    "Tls",
    "access_lines",
    "check_public",
    "create_app",
    "listen",
    "routes",
    "serve",
    "to_logger",
]

_HOMES: Final = ("access", "app", "arriving", "listener", "pump", "security", "serving")


def __getattr__(name: str) -> Any:
    """Each is imported when it is first asked for: a server opens its port, and starts its engine, before all else."""
    if name in __all__:
        for home in (import_module(f"strata.http.{home}") for home in _HOMES):
            if hasattr(home, name):
                return getattr(home, name)
    raise AttributeError(f"module 'strata.http' has no attribute {name!r}")
