"""Every bad setting refuses the start and names itself."""

import math
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import attrs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from strata.config import POLICIES, EngineSettings, Preempt, SchedulerSettings, Settings
from strata.errors import ConfigError


def test_a_policy_is_a_named_set_and_a_named_value_wins_over_it() -> None:
    assert Settings.of(policy="fifo").scheduler.preempt is Preempt.OFF
    assert Settings.of(policy="preempt").scheduler.max_running == 1
    assert Settings.of(policy="preempt", max_running=3).scheduler.max_running == 3
    assert Settings.of().policy == "batch"


def test_one_name_means_one_thing_in_every_room() -> None:
    settings = Settings.of(chunk_tokens=64)
    assert settings.scheduler.chunk_tokens == settings.engine.chunk_tokens == 64


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_can_be_built(policy: str) -> None:
    assert Settings.of(policy=policy).policy == policy


PARTS = [type(getattr(Settings(), part.name)) for part in attrs.fields(Settings)]
FIELDS = {field.name: field for part in PARTS if attrs.has(part) for field in attrs.fields(part)}
NUMBERS = {name: field.default for name, field in FIELDS.items() if "int" in field.type or "float" in field.type}
HINTS = {name: hint for part in PARTS if attrs.has(part) for name, hint in get_type_hints(part).items()}
HINTS |= get_type_hints(Settings)
_JUNK = st.just(math.nan) | st.just(math.inf) | st.integers(max_value=-(10**9)) | st.text() | st.booleans() | st.none()


@pytest.mark.parametrize("name", NUMBERS)
@settings(max_examples=30)
@given(value=_JUNK)
def test_a_number_that_makes_no_sense_is_refused_by_name(name: str, value: object) -> None:
    assume(value is not None or NUMBERS[name] is not None)
    with pytest.raises(ConfigError) as refused:
        Settings.of(**{name: value})
    assert refused.value.setting == name
    assert name in str(refused.value)


_ANYTHING = st.recursive(
    _JUNK
    | st.integers()
    | st.floats()
    | st.binary(max_size=4)
    | st.just(10**400)
    | st.just(Path())
    | st.just(object()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def is_of(hint: Any, value: object) -> bool:
    """Whether it has the type that stands at the setting; True is an int to Python, and to no setting."""
    if isinstance(hint, UnionType):
        return any(is_of(one, value) for one in get_args(hint))
    if get_origin(hint) is tuple:
        return type(value) is tuple and all(type(one) is str for one in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, float | int if hint is float else hint)


def tried(name: str, value: object) -> Settings | ConfigError:
    try:
        return Settings.of(**{name: value})
    except ConfigError as refused:
        return refused


@pytest.mark.parametrize("name", [*FIELDS, "served_name", "policy"])
@settings(max_examples=30)
@given(value=_ANYTHING)
def test_whatever_a_setting_is_given_it_has_its_type_or_is_refused_by_name(name: str, value: object) -> None:
    made = tried(name, value)
    if isinstance(made, ConfigError):
        assert made.setting == name
        return
    parts = (made, *(getattr(made, field.name) for field in attrs.fields(Settings)))
    assert is_of(HINTS[name], next(getattr(part, name) for part in parts if hasattr(part, name)))


@pytest.mark.parametrize(
    "named", [{"max_runing": 3}, {"policy": "fastest"}, {"preempt": "sometimes"}, {"order_share": 1}]
)
def test_a_name_or_value_that_is_not_in_the_list_is_refused(named: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as refused:
        Settings.of(**named)
    assert refused.value.setting in named


def test_numbers_of_sixteen_bits_are_for_a_card() -> None:
    assert Settings.of(device="cuda", activations="bf16").engine.activations == "bf16"
    for bad in ("bf16", "fp8"):
        with pytest.raises(ConfigError, match=r"^activations: "):
            Settings.of(activations=bad)


def test_a_library_for_products_is_for_numbers_of_sixteen_bits() -> None:
    card = {"device": "cuda", "activations": "f16"}
    assert [Settings.of(products=name, **card).engine.products for name in ("auto", "own", "cublas")]
    for bad in ({"products": "cublas"}, {"products": "cublas", "device": "cuda"}, {"products": "blas", **card}):
        with pytest.raises(ConfigError, match=r"^products: "):
            Settings.of(**bad)


def test_every_setting_says_what_it_is() -> None:
    for part in attrs.fields(Settings):
        if attrs.has(type(getattr(Settings(), part.name))):
            for field in attrs.fields(type(getattr(Settings(), part.name))):
                assert field.metadata.get("help"), field.name


def test_parts_that_name_different_grids_are_refused() -> None:
    with pytest.raises(ConfigError, match="the engine's is 512 and the scheduler's 64") as refused:
        Settings(scheduler=SchedulerSettings(chunk_tokens=64))
    assert refused.value.setting == "chunk_tokens"
    both = Settings(scheduler=SchedulerSettings(chunk_tokens=64), engine=EngineSettings(chunk_tokens=64))
    assert both.engine.chunk_tokens == 64


def test_processors_are_named_as_taskset_names_them() -> None:
    assert Settings.of(engine_cpus="0-2,7").hosting.cpus == (0, 1, 2, 7)
    assert Settings.of().hosting.cpus == ()
    for wrong in ("", "a", "3-1", "1,", "-1", "1;2"):
        with pytest.raises(ConfigError, match="engine_cpus"):
            Settings.of(engine_cpus=wrong)


def test_an_engine_lives_in_a_process_or_on_a_thread() -> None:
    assert Settings.of(engine_host="thread").hosting.engine_host == "thread"
    with pytest.raises(ConfigError, match="'moon' is not one of process, thread"):
        Settings.of(engine_host="moon")


@pytest.mark.parametrize(
    "wrong",
    [
        *("", " ", "a b", "a,b", "a..b", ".", "a/b", "https://chat.example.org", "user@chat.example.org"),
        *("localhost:evil", "localhost:99999", "chat.example.org:80:80", ":80", "*.example.org", "[chat.example.org]"),
        *("[::1", "::1]", "[::1]x", "[fe80::1%eth0]", "fe80::1%eth0", "1.2.3.400", "127.1", "chat\n.example", "a\0b"),
        *("b\u00fccher.example", "\u212a.example", "a" * 64, ".".join(["abcdefg"] * 40)),
    ],
)
def test_a_host_that_no_client_could_name_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"^allowed_hosts: "):
        Settings.of(allowed_hosts=["chat.example.org", wrong])


@pytest.mark.parametrize(
    "right",
    [
        "localhost",
        "Chat.example.org",
        "chat.example.org:443",
        "my_service",
        "xn--bcher-kva.example.",
        "10.0.0.1",
        "::1",
        "[::1]",
        "[::1]:8000",
        "*",
    ],
)
def test_a_host_may_be_a_name_or_an_address_with_a_port_or_without(right: str) -> None:
    assert Settings.of(allowed_hosts=[right]).serve.allowed_hosts == (right,)


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "chat.example.org", "https://", "https://a b", "https://a,https://b", "https://a/path", "https://a?b"),
        *(
            "https://u@a",
            "https://*.example.org",
            "https://a:evil",
            "https://a:99999",
            "http://::1",
            "null",
            "http://a\n",
        ),
        "https://b\u00fccher.example",
    ],
)
def test_an_origin_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"^cors_origin: .* is not an origin"):
        Settings.of(cors_origin=wrong)


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("https://chat.example.org/", "https://chat.example.org"),
        ("https://Chat.Example.org", "https://chat.example.org"),
        ("HTTPS://chat.example.org", "https://chat.example.org"),
        ("https://chat.example.org:443", "https://chat.example.org"),
        ("http://chat.example.org:80", "http://chat.example.org"),
        ("http://[0:0::1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_origin_that_a_browser_sends_in_another_form_is_refused_and_that_form_is_said(
    written: str, sent: str
) -> None:
    """It would never match."""
    with pytest.raises(ConfigError) as refused:
        Settings.of(cors_origin=written)
    assert str(refused.value).endswith(f": that is {sent}")
    assert Settings.of(cors_origin=sent).serve.cors_origin == sent


@pytest.mark.parametrize("right", ["*", "http://localhost:3000", "https://a.example:8443", "chrome-extension://Abc"])
def test_an_origin_is_kept_as_it_is(right: str) -> None:
    assert Settings.of(cors_origin=right).serve.cors_origin == right


@pytest.mark.parametrize(
    "wrong",
    [
        "127.0.0.1:8000",
        "http://127.0.0.1",
        "a b",
        " ",
        "*",
        "a\n",
        "unix:",
        "unix:\0x",
        "fd://",
        "fd://x",
        "fd://-1",
        "[127.0.0.1",
        "[::1]:80",
        "a/b",
    ],
)
def test_what_nobody_can_listen_at_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"^host: "):
        Settings.of(host=wrong)


@pytest.mark.parametrize("name", ["engine_log", "api_key_file"])
@pytest.mark.parametrize("wrong", ["", "a\0b", Path(), 5, b"a"])
def test_a_file_that_can_be_none_is_refused(name: str, wrong: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: "):
        Settings.of(**{name: wrong})


@pytest.mark.parametrize("wrong", ["", "  ", "a\nb", "\0"])
def test_a_name_that_nobody_could_read_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"^served_name: "):
        Settings.of(served_name=wrong)


def test_a_key_that_is_none_is_not_shown() -> None:
    for given_keys in (["se cret"], [b"secret"], b"secret", 4711, {"secret": 1}):
        with pytest.raises(ConfigError) as refused:
            Settings.of(api_keys=given_keys)
        assert "ecret" not in str(refused.value)
        assert "4711" not in str(refused.value)


def test_a_number_that_python_itself_would_not_write_is_refused_too() -> None:
    with pytest.raises(ConfigError, match=r"^max_queued: a number of more than 30 digits must be at least 1 and "):
        Settings.of(max_queued=10**5000)
