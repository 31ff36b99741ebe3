# Two commands carry the project: `make serve` and `make test`.  Both create what they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: serve test lint clean

serve: $(VENV)/.installed
	$(BIN)/strata serve $(ARGS)

test: $(VENV)/.tested
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.linted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/flake8-async --enable=ASYNC900,ASYNC910,ASYNC911,ASYNC912,ASYNC913 strata

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Strata needs Python 3.11 or later, this is " + sys.version) if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.tested: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --group test
	touch $@

$(VENV)/.linted: pyproject.toml $(VENV)/.tested
	$(BIN)/python -m pip install --quiet --group lint
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
