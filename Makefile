# make demo       set up and run the paper's Section 5.1: ten clients that disagree
# make federation  a study across a coordinator and three hospitals, as processes on this machine with TLS
# make test       set up and run all tests
# make check      format, lint, types, tests
# make docs       the documentation as a site, into site/
# make reproduce  all experiments of the paper, into reproduced/ (needs its data: see fsgld data)
# make bench      speed, side by side with peers (installs PyTorch, BlackJAX and others)

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# pip older than 25.1 does not know dependency groups, so a fresh environment takes a newer pip first
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo federation test check docs reproduce bench clean

$(VENV)/.pip:
	$(PYTHON) -m venv $(VENV)
	$(PIP) "pip>=25.1"
	touch $@

$(VENV)/.demo: $(VENV)/.pip pyproject.toml
	$(PIP) --editable ".[plots]"
	touch $@

$(VENV)/.test: $(VENV)/.pip pyproject.toml
	$(PIP) --editable ".[plots,arviz,data,glm,flare,report]" --group dev
	touch $@

demo: $(VENV)/.demo
	$(BIN)/python -m fsgld.experiments.blobs_demo

federation: $(VENV)/.test
	$(BIN)/python -m fsgld.engines.flare.demo examples/heart .fsgld/federation

test: $(VENV)/.test
	$(BIN)/python -m pytest -m "slow or not slow" --numprocesses auto --durations 10

check: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

docs: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reproduce: $(VENV)/.test
	$(BIN)/fsgld reproduce all

bench: $(VENV)-bench/.bench
	$(VENV)-bench/bin/python -m benchmarks.run

$(VENV)-bench/.bench: pyproject.toml
	$(PYTHON) -m venv $(VENV)-bench
	$(VENV)-bench/bin/python -m pip install --quiet "pip>=25.1"
	$(VENV)-bench/bin/python -m pip install --quiet --editable . --group bench
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-bench .pytest_cache .mypy_cache .ruff_cache .hypothesis
