"""What systemd wants to hear of a service (`Type=notify`): that it is up, and that it is closing down.

A datagram to the socket that NOTIFY_SOCKET names, as sd_notify(3) describes it; without the variable nothing happens.
Knows no server.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Final, Literal

from strata.cli.say import say

VARIABLE: Final = "NOTIFY_SOCKET"


def notify(state: Literal["READY=1", "STOPPING=1"]) -> None:
    """Never raises and never waits: a manager that is not listening is no reason not to serve."""
    address = os.environ.get(VARIABLE)
    if not address:
        return
    # The @ stands for the zero byte that an abstract name begins with.
    name = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), name)
    except OSError as error:
        say(f"strata: {VARIABLE} is {address!r}, which can't be reached ({error.strerror or error})", sys.stderr)
