# Two commands carry the project: `make serve` and `make test`.  Both create what they need.
PYTHON ?= python3
# What `make test-all` tries: names, or paths where they are not to be found by name.
PYTHONS ?= python3.11 python3.13
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
ARGS ?=

.PHONY: serve test test-all gpu-deps gpu-check lint clean

serve: $(VENV)/.installed
	$(BIN)/strata serve $(ARGS)

# A process for each processor, up to four: each has its own servers and models.  A file's tests stay together.
test: $(VENV)/.tested
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile $(ARGS)

# With these `make test` runs the GPU engine's tests too, on an emulated card.
gpu-deps: $(VENV)/.gpu

# What takes longer than tests should: sanitizers, barriers taken out, NVIDIA's compiler for every card.
gpu-check: $(VENV)/.gpu
	$(BIN)/python tests/gpu/check.py $(ARGS)

# On each of these Pythons that is installed, in an environment of its own; one that fails doesn't hide the others.
test-all:
	@failed= tried=; \
	for python in $(PYTHONS); do \
		if version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then \
			echo "== Python $$version"; tried=$$version; \
			$(MAKE) test PYTHON=$$python VENV=.venv-$$version || failed="$$failed $$version"; \
		else \
			echo "== $$python is not installed: skipped"; \
		fi; \
	done; \
	if [ -n "$$failed" ]; then echo "== failed on Python$$failed"; exit 1; fi; \
	if [ -z "$$tried" ]; then echo "== none of these is installed: $(PYTHONS)"; exit 1; fi

lint: $(VENV)/.linted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/flake8-async --enable=ASYNC900,ASYNC910,ASYNC911,ASYNC912,ASYNC913 $$(find strata -name '*.py')

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("Strata needs Python 3.11 or later, this is " + sys.version) if sys.version_info < (3, 11) else 0'
	@echo "== creating a Python environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Compiles the kernels too, if there is a compiler; again whenever a source of theirs changes.
$(VENV)/.installed: pyproject.toml setup.py $(wildcard strata/cpu/native/*.[ch]) | $(VENV)/bin/python
	@echo "== installing Strata and what it needs (42 MB), and compiling its kernels: a minute or two"
	@$(PIP) --editable .
	@$(BIN)/python -m strata.cpu.choice
	@touch $@

# A newer pip than some Pythons bring: it has to know groups.
$(VENV)/.tested: pyproject.toml $(VENV)/.installed
	@echo "== installing what the tests need"
	@$(PIP) --upgrade pip
	@$(PIP) --group test
	@touch $@

$(VENV)/.gpu: tests/gpu/deps.sh $(VENV)/.tested
	tests/gpu/deps.sh $(BIN)/python
	@touch $@

$(VENV)/.linted: pyproject.toml $(VENV)/.tested
	@echo "== installing what the checks need"
	@$(PIP) --group lint
	@touch $@

clean:
	rm -rf $(VENV) .venv-3.* build dist strata/cpu/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis
