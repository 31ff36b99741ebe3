"""Traffic in files, and made up."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.errors import ConfigError
from strata.simulate import TraceRequest, generate, read_trace, write_trace

GOOD = '{"timestamp": 5, "input_length": 3, "output_length": 2}\n'

lines = st.builds(
    TraceRequest,
    timestamp=st.one_of(st.integers(0, 10**9).map(float), st.floats(0, 1e9)),
    input_length=st.integers(1, 100_000),
    output_length=st.integers(1, 5_000),
    priority=st.integers(-100, 100),
    hash_ids=st.lists(st.integers(0, 2**62), max_size=4).map(tuple),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests=st.lists(lines, min_size=1, max_size=20))
def test_a_trace_that_was_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, requests: list[TraceRequest]
) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    write_trace(path, requests)
    assert read_trace(path) == sorted(requests, key=lambda request: request.timestamp)


def test_a_mooncake_line_is_read_and_written_as_it_is(tmp_path: Path) -> None:
    line = '{"timestamp":27482,"input_length":6955,"output_length":52,"hash_ids":[46,47,2353]}\n'
    (tmp_path / "in").write_text(line)
    write_trace(tmp_path / "out", read_trace(tmp_path / "in"))
    assert (tmp_path / "out").read_text() == line


def test_names_that_are_not_ours_and_empty_lines_are_read_over(tmp_path: Path) -> None:
    (tmp_path / "t").write_text('\n{"timestamp": 1, "input_length": 3, "output_length": 2, "turn": 1}\n\n')
    assert read_trace(tmp_path / "t") == [TraceRequest(1.0, 3, 2)]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("no json", "malformed"),
        ("[]", "object"),
        ('{"timestamp": 1, "input_length": 3}', "output_length"),
        ('{"timestamp": 1, "input_length": "3", "output_length": 2}', "input_length"),
        ('{"timestamp": 1, "input_length": 0, "output_length": 2}', "input_length"),
        ('{"timestamp": 1, "input_length": 3, "output_length": 1.5}', "output_length"),
        ('{"timestamp": -1, "input_length": 3, "output_length": 2}', "timestamp"),
        ('{"timestamp": NaN, "input_length": 3, "output_length": 2}', "malformed"),
        ('{"timestamp": 1e16, "input_length": 3, "output_length": 2}', "timestamp"),
        ('{"timestamp": 1e999, "input_length": 3, "output_length": 2}', ""),
        ('{"timestamp": 1, "input_length": 3, "output_length": 2, "priority": 101}', "priority"),
        ('{"timestamp": 1, "input_length": 3, "output_length": 2, "hash_ids": "x"}', "hash_ids"),
        ('{"timestamp": 1, "input_length": 3, "output_length": 2', ""),
        ("\xff\xfe", ""),
    ],
)
def test_a_bad_line_is_refused_by_its_number(tmp_path: Path, line: str, named: str) -> None:
    (tmp_path / "t").write_bytes(GOOD.encode() + b"\n" + line.encode("latin-1") + b"\n" + GOOD.encode())
    with pytest.raises(ConfigError, match="line 3 of .*" + named):
        read_trace(tmp_path / "t")


def test_a_file_that_is_not_there_or_has_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_trace(tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="no request"):
        read_trace(tmp_path / "empty")
    with pytest.raises(ConfigError, match="can't be written"):
        write_trace(tmp_path / "no" / "where", [])


@pytest.mark.parametrize("kind", ["agents", "chat", "mixed"])
def test_made_up_traffic_is_of_the_size_and_rate_asked_for_and_the_same_for_a_seed(kind: str) -> None:
    made = generate(kind, 2000, seed=3, per_s=5.0)
    assert made == generate(kind, 2000, seed=3, per_s=5.0)
    assert made != generate(kind, 2000, seed=4, per_s=5.0)
    assert len(made) == 2000
    assert made == sorted(made, key=lambda request: request.timestamp)
    assert 200 < made[-1].timestamp / 1000 < 800
    assert all(request.input_length + request.output_length <= 8192 for request in made)


def test_agents_ask_for_more_than_chats() -> None:
    agents, chats = (generate(kind, 500, seed=3, per_s=5.0) for kind in ("agents", "chat"))
    assert sum(one.input_length for one in agents) > 5 * sum(one.input_length for one in chats)


def test_few_requests_can_be_made_up_too() -> None:
    for kind in ("agents", "chat", "mixed"):
        assert len(generate(kind, 1, seed=1, per_s=1.0)) == 1
