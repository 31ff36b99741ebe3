"""Keys, hosts and origins."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import trio
from api_call import served

from strata.config import ServeSettings
from strata.errors import ConfigError
from strata.http.errors import Forbidden, Unauthorised, UnsupportedEncoding, UnsupportedMedia
from strata.http.security import Access, Keys, Names, check_encoding, check_json, check_public, is_loopback, read_keys

USER, ADMIN = "Bearer user-key", "Bearer admin-key"


@pytest.mark.parametrize(
    "sent", [None, "", "user-key", "Basic user-key", "Bearer", "Bearer x", "Bearer user-key2", "Bearer é"]
)
def test_without_a_known_key_nothing_but_health_is_open(sent):
    """B64: whatever the header looks like."""
    keys = Keys(["other-key", "user-key"], None)
    keys.check(sent, Access.OPEN)
    for access in (Access.USE, Access.ADMIN):
        with pytest.raises(Unauthorised):
            keys.check(sent, access)


def test_any_of_several_keys_opens_and_the_scheme_has_no_case():
    keys = Keys(["other-key", "user-key"], None)
    for sent in (USER, "Bearer other-key", "bearer  user-key "):
        keys.check(sent, Access.USE)
        keys.check(sent, Access.ADMIN)


def test_with_an_admin_key_no_other_opens_admin():
    keys = Keys(["user-key"], "admin-key")
    keys.check(ADMIN, Access.ADMIN)
    keys.check(ADMIN, Access.USE)
    with pytest.raises(Forbidden):
        keys.check(USER, Access.ADMIN)
    with pytest.raises(Unauthorised):
        keys.check(None, Access.ADMIN)
    assert keys.is_admin(ADMIN)
    assert not keys.is_admin(USER)


def test_an_admin_key_alone_leaves_the_rest_open():
    keys = Keys([], "admin-key")
    keys.check(None, Access.USE)
    with pytest.raises(Unauthorised):
        keys.check(None, Access.ADMIN)


def test_without_any_key_everything_is_open_and_nobody_is_admin():
    keys = Keys([], None)
    keys.check(None, Access.ADMIN)
    assert not keys.is_admin("Bearer ")
    assert not keys.is_admin(None)


def test_no_key_shows_in_what_is_printed():
    """B64: neither in the settings nor in what is made of them."""
    settings = ServeSettings(api_keys="user-key,other-key", admin_key="admin-key")
    shown = repr(settings) + repr(Keys.of(settings)) + str(vars(Keys.of(settings)))
    assert "-key'" not in shown
    assert "user-key" not in shown


def test_keys_come_from_a_file_too(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\n\n  first \nsecond\n")
    keys = Keys.of(ServeSettings(api_keys="third", api_key_file=file))
    for key in ("first", "second", "third"):
        keys.check(f"Bearer {key}", Access.USE)


def test_what_can_be_no_key_refuses_the_start_by_its_line_and_is_not_shown(tmp_path):
    """No client could send it: a remark behind a key would lock everybody out."""
    file = tmp_path / "keys"
    file.write_text("# ours\nfirst\nse-cr-et # of a friend\n")
    with pytest.raises(ConfigError, match="line 3: a key is") as refused:
        Keys.of(ServeSettings(api_key_file=file))
    assert "cr-et" not in str(refused.value)


@pytest.mark.parametrize("content", [None, b"", b"# nothing\n", b"\xff\n"])
def test_a_file_without_a_key_refuses_the_start(tmp_path, content):
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match="api_key_file"):
        Keys.of(ServeSettings(api_key_file=file))


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST.", "", None]
)
def test_on_loopback_it_is_called_by_loopbacks_names(host):
    Names(ServeSettings()).check_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:80",
        "evil@localhost",
        "[::1]evil.example:1",
        "[::1",
        "::1]",
        "[localhost]",
        "localhost:evil",
        "localhost:80:80",
        "unix",
        ":80",
    ],
)
def test_on_loopback_any_other_host_is_refused(host):
    with pytest.raises(Forbidden):
        Names(ServeSettings()).check_host(host)


def test_an_address_is_one_however_it_is_written():
    names = Names(ServeSettings(allowed_hosts=["[0:0:0::1]:8000", "Chat.Example.org."]))
    for host in ("[::1]", "[::1]:80", "::1", "[0:0::1]", "chat.example.org:443"):
        names.check_host(host)
    for host in ("[::2]", "localhost", "chat.example.org.evil.example"):
        with pytest.raises(Forbidden):
            names.check_host(host)


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://evil.example/health", b"localhost", 403),
        (b"http://localhost:80/health", b"evil.example", 200),
        (b"http://evil@localhost/health", b"localhost", 403),
        (b"http:///health", b"localhost", 400),
        (b"/health", b"evil.example", 403),
    ],
)
async def test_the_host_that_the_target_names_goes_before_the_header(target, host, status):
    """RFC 9112, 3.2.2: so no proxy and this server take one request for two hosts'."""
    async with served() as server, await trio.open_tcp_stream("127.0.0.1", server.port) as client:
        await client.send_all(b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (target, host))
        answered = b"".join([part async for part in client])
    assert answered.startswith(b"HTTP/1.1 %d" % status)


def test_elsewhere_any_host_is_right_unless_some_are_named():
    Names(ServeSettings(host="0.0.0.0")).check_host("anything")
    named = Names(ServeSettings(host="0.0.0.0", allowed_hosts="Chat.example.org"))
    named.check_host("chat.example.org:443")
    with pytest.raises(Forbidden):
        named.check_host("other.example.org")
    Names(ServeSettings(allowed_hosts="*")).check_host("anything")


def test_an_administrators_post_is_json_from_the_same_origin_or_from_no_page():
    names = Names(ServeSettings())

    def check(origin: str | None) -> None:
        names.check_change(scheme="http", host="localhost:8000", origin=origin)

    check(None)
    check("http://localhost:8000")
    for origin in ("https://localhost:8000", "http://localhost:8001", "http://evil.example", "null", ""):
        with pytest.raises(Forbidden):
            check(origin)


def test_a_body_is_called_json_or_is_not_taken():
    for content_type in ("application/json", "Application/JSON ; charset=utf-8"):
        check_json(content_type)
    for content_type in (None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"):
        with pytest.raises(UnsupportedMedia):
            check_json(content_type)


def test_a_body_that_is_coded_is_not_taken():
    for plain in ([], [""], ["identity"], ["Identity, identity"]):
        check_encoding(plain)
    for coded in (["gzip"], ["identity", "br"], ["identity, GZIP"], ["aws-chunked"]):
        with pytest.raises(UnsupportedEncoding):
            check_encoding(coded)


@pytest.mark.parametrize("named", ["*", "https://a.example"])
def test_an_origin_that_may_chat_may_not_give_an_administrators_orders(named):
    names = Names(ServeSettings(cors_origin=named))
    for origin in ("https://a.example", "http://evil.example", "null", "*"):
        with pytest.raises(Forbidden):
            names.check_change(scheme="http", host="localhost:8000", origin=origin)


def test_only_the_named_origin_is_let_in():
    assert Names(ServeSettings()).allows_origin("https://a.example") is None
    names = Names(ServeSettings(cors_origin="https://a.example"))
    assert names.allows_origin("https://a.example") == "https://a.example"
    assert names.allows_origin("https://b.example") is None
    assert names.allows_origin(None) is None
    assert Names(ServeSettings(cors_origin="*")).allows_origin("https://b.example") == "*"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "unix:/run/x"])
def test_what_only_this_machine_reaches_is_loopback(host):
    assert is_loopback(host)
    check_public(ServeSettings(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_a_public_address_without_a_key_is_refused_at_the_start(host):
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match="--api-key"):
        check_public(ServeSettings(host=host))
    check_public(ServeSettings(host=host, api_keys="k"))
    check_public(ServeSettings(host=host, insecure=True))


def listening_at(host: str, family: int = socket.AF_INET) -> socket.socket:
    return socket.create_server((host, 0), family=family)


@pytest.mark.parametrize("host", ["127.0.0.1", "fd://3", "unix:/run/x"])
def test_a_public_socket_without_a_key_is_refused_whatever_the_settings_say(host):
    with listening_at("0.0.0.0") as public, listening_at("127.0.0.1") as ours:
        for listeners in ([public], [ours, public]):
            with pytest.raises(ConfigError, match=r"0\.0\.0\.0 can be reached by others: set --api-key"):
                check_public(ServeSettings(host=host), listeners)
        check_public(ServeSettings(host=host, api_keys="k"), [public])
        check_public(ServeSettings(host=host, insecure=True), [public])


def test_sockets_of_this_machine_need_no_key(tmp_path: Path):
    with (
        listening_at("127.0.0.1") as four,
        listening_at("::1", socket.AF_INET6) as six,
        socket.socket(socket.AF_UNIX) as file,
    ):
        file.bind(str(tmp_path / "s"))
        check_public(ServeSettings(host="fd://3"), [four, six, file])


def test_what_is_passed_in_is_called_by_loopbacks_names_unless_others_are_named():
    Names(ServeSettings(host="fd://3")).check_host("localhost")
    with pytest.raises(Forbidden):
        Names(ServeSettings(host="fd://3")).check_host("evil.example")
    Names(ServeSettings(host="fd://3", allowed_hosts="chat.example")).check_host("chat.example")


def test_a_key_file_may_begin_with_a_mark_and_have_comments_in_any_language(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes("\ufeffone\r\n# für Jürgen\r\ntwo\r\n".encode())
    assert read_keys(file) == ("one", "two")


def test_a_key_file_without_an_end_is_none() -> None:
    with pytest.raises(ConfigError, match="has more than"):
        read_keys(Path("/dev/zero"))
