"""What `import strata` gives, and what it costs."""

import subprocess
import sys

import pytest

import strata


def test_the_heavy_rooms_are_imported_when_they_are_asked_for_and_not_before() -> None:
    script = (
        "import sys, strata\n"
        "assert not {'trio', 'numpy', 'tokenizers', 'jinja2', 'attrs'} & sys.modules.keys()\n"
        "strata.Settings, strata.ConfigError, strata.Request\n"
        "assert not {'trio', 'numpy', 'tokenizers', 'jinja2'} & sys.modules.keys()\n"
        "strata.open_runtime\n"
        "assert {'trio', 'tokenizers'} <= sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_name_that_is_promised_is_there() -> None:
    for name in strata.__all__:
        assert getattr(strata, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        strata.__getattr__("no_such_name")
