"""Sockets to listen on: what they are given, and what refuses the start."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.config import ServeSettings
from strata.errors import StartError
from strata.http.listener import FIRST_PASSED_FD, SEND_BUFFER_BYTES, UNSENT_BYTES, address_of, listen, passed_sockets


@pytest.fixture
def opened() -> Iterator[list[socket.socket]]:
    """Closed after the test."""
    sockets: list[socket.socket] = []
    yield sockets
    for each in sockets:
        each.close()


def test_a_free_port_is_found(opened: list[socket.socket]) -> None:
    opened += listen(ServeSettings(port=0))
    assert len(opened) == 1
    assert address_of(opened[0]) == f"http://127.0.0.1:{opened[0].getsockname()[1]}"
    assert opened[0].getsockname()[1] > 0


def test_accepted_connections_have_our_options(opened: list[socket.socket]) -> None:
    """B27: a small send buffer, and an end to clients that vanished."""
    opened += listen(ServeSettings(port=0, stall_timeout_s=2.5))
    with socket.create_connection(opened[0].getsockname()) as client:
        opened[0].setblocking(True)
        accepted, _ = opened[0].accept()
        with accepted:
            # The kernel doubles what it is given.
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * SEND_BUFFER_BYTES
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2500
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == UNSENT_BYTES
            assert client.getpeername() == accepted.getsockname()
    assert opened[0].getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1


def test_a_name_with_two_addresses_gets_one_port(opened: list[socket.socket]) -> None:
    opened += listen(ServeSettings(host="localhost", port=0))
    assert len({listener.getsockname()[1] for listener in opened}) == 1


def test_all_interfaces_are_ipv4_and_ipv6(opened: list[socket.socket]) -> None:
    opened += listen(ServeSettings(host="", port=0))
    families = {listener.family for listener in opened}
    assert socket.AF_INET in families
    assert families <= {socket.AF_INET, socket.AF_INET6}


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_address_is_shown_in_brackets(host: str, opened: list[socket.socket]) -> None:
    opened += listen(ServeSettings(host=host, port=0))
    assert address_of(opened[0], scheme="https") == f"https://[::1]:{opened[0].getsockname()[1]}"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_in_use_is_named_in_one_line(host: str, opened: list[socket.socket]) -> None:
    opened += listen(ServeSettings(host=host, port=0))
    port = opened[0].getsockname()[1]
    with pytest.raises(StartError) as caught:
        listen(ServeSettings(host=host, port=port))
    shown = f"[{host}]" if ":" in host else host
    mend = "stop what listens there, or choose another port (`--port`, or STRATA_PORT)"
    assert str(caught.value) == f"can't listen on {shown}:{port}: the address is in use; {mend}"


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "a" * 70, "fd://9999"])
def test_an_address_that_is_not_here_is_named_in_one_line(host: str) -> None:
    with pytest.raises(StartError) as caught:
        listen(ServeSettings(host=host, port=0))
    assert host.removeprefix("fd://") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stale_unix_socket_is_replaced(tmp_path: Path, opened: list[socket.socket]) -> None:
    path = tmp_path / "strata.sock"
    settings = ServeSettings(host=f"unix:{path}")
    listen(settings)[0].close()
    assert stat.S_ISSOCK(path.stat().st_mode)
    opened += listen(settings)
    assert address_of(opened[0]) == f"unix:{path}"


def test_a_unix_socket_that_somebody_answers_at_is_left_alone(tmp_path: Path, opened: list[socket.socket]) -> None:
    settings = ServeSettings(host=f"unix:{tmp_path / 'strata.sock'}")
    opened += listen(settings)
    with pytest.raises(StartError, match=r"can't listen on unix:.*: the address is in use; .*another path$"):
        listen(settings)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(opened[0].getsockname())


@pytest.mark.parametrize("path", ["/no/such/folder/strata.sock", "/" + "x" * 200])
def test_a_unix_socket_that_cannot_be_made_is_named(path: str) -> None:
    with pytest.raises(StartError, match="can't listen on unix:"):
        listen(ServeSettings(host=f"unix:{path}"))


def test_a_file_is_not_taken_for_a_stale_socket(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("kept")
    with pytest.raises(StartError, match="can't listen on unix:"):
        listen(ServeSettings(host=f"unix:{path}"))
    assert path.read_text() == "kept"


def test_a_passed_socket_is_listened_on(opened: list[socket.socket]) -> None:
    theirs = socket.socket()
    theirs.bind(("127.0.0.1", 0))
    port = theirs.getsockname()[1]
    opened += listen(ServeSettings(host=f"fd://{theirs.detach()}"))
    assert opened[0].getsockname()[1] == port
    with socket.create_connection(("127.0.0.1", port)):
        pass


def test_a_passed_datagram_socket_is_refused() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as theirs:
        copy = os.dup(theirs.fileno())
        with pytest.raises(StartError, match=f"the passed socket {copy}: "):
            listen(ServeSettings(host=f"fd://{copy}"))


def test_sockets_that_systemd_passed_to_another_process_are_not_ours() -> None:
    assert passed_sockets(ServeSettings(), {"LISTEN_PID": "1", "LISTEN_FDS": "2"}) == []
    assert passed_sockets(ServeSettings(), {}) == []


def test_sockets_that_systemd_passed_are_taken(tmp_path: Path) -> None:
    """In a process of its own, because they begin at descriptor 3."""
    theirs = socket.socket()
    theirs.bind(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        os.dup2(theirs.fileno(), FIRST_PASSED_FD)
        environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
        (taken,) = listen(ServeSettings(port=1), environ=environ)
        (tmp_path / "told").write_text(address_of(taken))
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "told").read_text() == f"http://127.0.0.1:{theirs.getsockname()[1]}"
    theirs.close()


def test_a_strange_number_of_passed_sockets_refuses_the_start() -> None:
    with pytest.raises(StartError, match="LISTEN_FDS is 'two'"):
        listen(ServeSettings(), environ={"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "two"})
