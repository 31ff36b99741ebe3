"""Nobody reads what the server says: it serves all the same, and ends when it is told to."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from served import START_TIMEOUT_S, Server, Stream, strata, until

PIPE_BYTES = 4096
"""The smallest that there is."""
ASKED = 60
"""Their lines are more than that."""


def until_it_listens(output: Iterable[str]) -> Iterator[str]:
    for line in output:
        yield line
        if "listening on" in line:
            return


@pytest.fixture
def unread(default_model_path: Path) -> Iterator[Server]:
    """Its terminal was read until it listened, and no further."""
    command = strata("serve", "--port", "0", "--model", default_model_path, "--kv-mib", "256")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, pipesize=PIPE_BYTES) as process:
        assert process.stdout is not None
        server = Server(process, 0)
        try:
            server.listen_to(until_it_listens(process.stdout))
            assert server.port
            yield server
        finally:
            process.kill()


def test_a_log_that_nobody_reads_holds_up_neither_the_serving_nor_the_end(unread: Server) -> None:
    """B40: one signal, and what was asked is answered."""
    for _ in range(ASKED):
        assert unread.get("/health")[0] == 200
    assert unread.stop() == 0


def test_a_log_that_nobody_reads_holds_up_no_end_that_is_told_twice(unread: Server) -> None:
    """B41."""
    for _ in range(ASKED):
        unread.get("/health")
    stream = Stream(unread, "Count.", max_tokens=4000, ignore_eos=True)
    stream.began.wait(START_TIMEOUT_S)
    unread.process.terminate()
    until(lambda: unread.get("/ready")[0] == 503, "it drains")
    assert unread.stop() == 128 + signal.SIGTERM
    stream.join()
    assert stream.error
