"""Settings from a TOML file: where they stand between the flags and the defaults, and what is refused."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from strata.cli import cli
from strata.cli.config_file import FILE_NAME, checked, read_config, user_config_path
from strata.cli.flags import named, settings_flags
from strata.config import EngineSettings, SchedulerSettings, ServeSettings
from strata.errors import ConfigError


@click.command()
@settings_flags(ServeSettings, SchedulerSettings, EngineSettings)
@click.pass_context
def show(context: click.Context, /, **flags: Any) -> None:
    """The settings as a command gets them."""
    context.obj.update(named(flags))


def given_to(*arguments: str, **environment: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    result = CliRunner().invoke(show, arguments, obj=values, env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return values


def written(folder: Path, text: str) -> str:
    path = folder / "my.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("flag", "variable", "line", "wanted"),
    [
        ("5", "6", "max_running = 7", 5),
        (None, "6", "max_running = 7", 6),
        (None, None, "max_running = 7", 7),
        (None, None, "", None),
    ],
)
def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, flag: str | None, variable: str | None, line: str, wanted: int | None
) -> None:
    arguments = ["--config", written(tmp_path, line), *([] if flag is None else ["--max-running", flag])]
    environment = {} if variable is None else {"STRATA_MAX_RUNNING": variable}
    assert given_to(*arguments, **environment).get("max_running") == wanted


def test_a_file_may_hold_every_kind_of_setting(tmp_path: Path) -> None:
    text = (
        'api_keys = ["one", "two"]\nstrict_fields = true\nquantum_s = 2\npreempt = "chunk"\npolicy = "fifo"\nport = 0\n'
    )
    values = given_to("--config", written(tmp_path, text))
    assert values["api_keys"] == ("one", "two")
    assert values["strict_fields"] is True
    assert (values["quantum_s"], values["preempt"], values["policy"], values["port"]) == (2.0, "chunk", "fifo", 0)


def test_a_file_may_begin_with_the_mark_that_some_editors_write(tmp_path: Path) -> None:
    assert given_to("--config", written(tmp_path, "\ufeffmax_running = 3"))["max_running"] == 3


def test_a_setting_of_several_values_may_have_one(tmp_path: Path) -> None:
    assert given_to("--config", written(tmp_path, 'allowed_hosts = "chat.example.org"'))["allowed_hosts"] == (
        "chat.example.org",
    )


def test_the_file_in_the_users_folder_is_read_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STRATA_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "max_running" not in given_to()
    path = user_config_path()
    assert path.name == FILE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("max_running = 3")
    assert given_to()["max_running"] == 3
    assert "max_running" not in given_to("--config", os.devnull)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("max_runing = 4", "is it max_running?"),
        ("max_running = 'many'", "has text for it, and a whole number is wanted"),
        ("max_running = true", "has true or false for it, and a whole number is wanted"),
        ("max_running = 4.7", "has a number for it, and a whole number is wanted"),
        ("max_running = [1, 2]", "has a list for it, and a whole number is wanted"),
        ("quantum_s = '2'", "has text for it, and a number is wanted"),
        ("quantum_s = 2026-11-30", "has a date or a time for it, and a number is wanted"),
        ("strict_fields = 'yes'", "has text for it, and true or false is wanted"),
        ("host = 5", "has a whole number for it, and text is wanted"),
        ("served_name = 5", "has a whole number for it, and text is wanted"),
        ("engine_log = 5", "has a whole number for it, and text is wanted"),
        ("api_keys = [1]", "has a whole number for it, and text is wanted"),
        ("api_keys = 1", "has a whole number for it, and text is wanted"),
        ("allowed_hosts = ['a.example', true]", "has true or false for it, and text is wanted"),
        ("allowed_hosts = [['a.example']]", "has a list for it, and text is wanted"),
        ("rates = 1", "has a whole number for it, and a list is wanted"),
        ("rates = [1, 0.1, '0.1']", "has text for it, and a number is wanted"),
        ("max_running = " + "9" * 5000, "is not TOML"),
        ("preempt = 'sometimes'", "'sometimes' is not one of"),
        ("[engine]\ncontext = 64", "without tables"),
        ("max_running", "is not TOML"),
    ],
)
def test_what_a_file_can_not_mean_is_refused_with_its_name(tmp_path: Path, line: str, says: str) -> None:
    path = written(tmp_path, line)
    with pytest.raises(ConfigError) as refused:
        CliRunner().invoke(cli, ["doctor", "--config", path], catch_exceptions=False)
    assert says in str(refused.value)
    assert path in str(refused.value)


def test_keys_are_not_shown_where_one_is_none(tmp_path: Path) -> None:
    path = written(tmp_path, "api_keys = ['first', 4711]\nadmin_key = 4712")
    with pytest.raises(ConfigError) as refused:
        CliRunner().invoke(cli, ["doctor", "--config", path], catch_exceptions=False)
    assert not any(key in str(refused.value).replace(path, "") for key in ("first", "4711", "4712"))


@pytest.mark.parametrize(("line", "code", "says"), [("port = 8001", 0, ""), ("prot = 8001", 2, "(is it port?)")])
def test_a_command_knows_what_the_others_take_though_it_has_not_imported_them(
    tmp_path: Path, line: str, code: int, says: str
) -> None:
    command = [sys.executable, "-m", "strata", "chat", "--config", written(tmp_path, line), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert says in done.stderr


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "odd.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_config(tmp_path / "odd.toml")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(
    name=st.sampled_from(["max_running", "api_keys", "strict_fields", "quantum_s", "preempt", "kv_mib"]), value=_VALUES
)
def test_no_value_of_any_type_ends_in_a_traceback(name: str, value: Any) -> None:
    option = next(option for option in show.params if option.name == name)
    assert isinstance(option, click.Option)
    with contextlib.suppress(ConfigError):
        checked(option, value, Path("any.toml"), click.Context(show))


@pytest.mark.parametrize(
    ("variable", "meant"), [("STRATA_API_KEY", "STRATA_API_KEYS"), ("STRATA_MAX_RUNING", "STRATA_MAX_RUNNING")]
)
def test_a_variable_that_is_nearly_a_settings_name_is_refused_and_the_name_is_said(variable: str, meant: str) -> None:
    """A key that isn't one would leave the server open."""
    with pytest.raises(ConfigError, match=rf"{variable}.*is it {meant}"):
        given_to(**{variable: "1"})


def test_a_variable_that_is_like_no_setting_is_somebody_elses() -> None:
    assert given_to(STRATA_URL="http://127.0.0.1:8000", STRATA_FOLDER="x") == given_to()
