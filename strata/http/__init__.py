"""The edge: bytes on sockets become requests, and answers become bytes.  Knows the runtime by its public face only."""

from typing import TYPE_CHECKING

from strata.lazily import lazily

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

# A server opens its port, and starts its engine, before all else.
__getattr__ = lazily(__name__, __all__, ("access", "app", "arriving", "listener", "pump", "security", "serving"))
