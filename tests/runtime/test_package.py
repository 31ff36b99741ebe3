"""What `import strata` gives, and what it costs."""

import subprocess
import sys
from types import ModuleType

import pytest

import strata
import strata.http
import strata.models


def test_the_heavy_rooms_are_imported_when_they_are_asked_for_and_not_before() -> None:
    script = (
        "import sys, strata\n"
        "assert not {'trio', 'numpy', 'tokenizers', 'jinja2', 'attrs'} & sys.modules.keys()\n"
        "strata.Settings, strata.ConfigError, strata.Request\n"
        "assert not {'trio', 'numpy', 'tokenizers', 'jinja2'} & sys.modules.keys()\n"
        "strata.open_runtime\n"
        "assert 'trio' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_server_has_its_port_and_its_engine_before_it_imports_what_serves() -> None:
    script = (
        "import sys, strata.cli\n"
        "from strata.http.listener import listen\n"
        "from strata.http.arriving import Arriving\n"
        "from strata.http.security import check_public\n"
        "from strata.runtime import open_runtime\n"
        "print({'quart', 'hypercorn', 'tokenizers', 'jinja2'} & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.mark.parametrize("package", [strata, strata.http, strata.models])
def test_every_name_that_is_promised_is_there_and_no_other(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'no_such_name'"):
        package.no_such_name  # noqa: B018  # asking is what is tested
