"""The contracts that hold the shape of the code name every module that they should."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_actors_may_import_no_module_of_the_engine_but_its_host() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [c for c in contracts if c["name"].startswith("Actors reach the engine")]
    modules = {f"strata.engine.{path.stem}" for path in (ROOT / "strata" / "engine").glob("[!_]*.py")}
    assert set(contract["forbidden_modules"]) == modules - {"strata.engine.host"}
