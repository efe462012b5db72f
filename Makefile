# Everything runs in .venv, which is made on the first call. A stamp per set of extras records what is
# installed, so that a second call starts at once; touching pyproject.toml installs anew.
#
#   make PYTHON=python3.12 test      chooses the interpreter
#   make PYTEST_ARGS="-k ais" test   passes arguments on to pytest
#   make PIP_ARGS="jax~=0.11.0" test passes arguments on to pip; new ones install anew
#   make check FAMILY=dbn            looks at one family only

PYTHON ?= python3
PYTEST_ARGS ?=
PIP_ARGS ?=
FAMILY ?= rbm
QUICK_TESTS := tests/truth/test_truth_architecture.py tests/conformance/test_conformance_families.py
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-x64 check lint docs clean

help:  ## Show this list
	@echo "Usage: make TARGET [PYTHON=python3] [FAMILY=rbm]"
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed  ## Install, train one model of each kind on bundled data, print the path of the report
	@$(BIN)/latentia demo

test: $(VENV)/.installed-test  ## Run all tests, on as many processes as there are cores (and memory for)
	$(BIN)/python -m pytest -n auto --dist loadfile $(PYTEST_ARGS)  # a file's tests share what they compile

test-x64: $(VENV)/.installed-test  ## Run the tests of the formulas with 64-bit types switched on
	JAX_ENABLE_X64=1 $(BIN)/python -m pytest -n auto --dist loadfile $(PYTEST_ARGS) tests/truth tests/conformance

check: $(VENV)/.installed-test  ## Check style, types, imports and one family (FAMILY=rbm) in about a minute
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@types=$$(mktemp); $(BIN)/pyright src > $$types & pyright=$$!; \
	$(BIN)/python -m pytest --family $(FAMILY) $(QUICK_TESTS); failed=$$?; \
	if [ $$failed = 4 ]; then kill $$pyright; exit 4; fi; \
	wait $$pyright || failed=1; cat $$types; rm -f $$types; exit $$failed

lint: $(VENV)/.installed-test  ## Check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright src

docs: $(VENV)/.installed-docs  ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: build
build: $(VENV)/.installed-test  ## Build the wheel and the source archive into dist/
	$(BIN)/python -m build

clean:  ## Remove the environment and everything generated, except runs/
	rm -rf $(VENV) build dist site docs/families docs/gallery .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Latentia needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name a newer one, for instance: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed: is the system's package for venv installed (python3-venv)?" >&2; exit 1; }

# Arguments for pip that are not those of the last call make everything else stale.
.PHONY: .new-pip-args
$(VENV)/.pip-args: $(if $(PIP_ARGS),.new-pip-args) | $(BIN)/python
	@echo "$(PIP_ARGS)" | cmp -s - $@ || echo "$(PIP_ARGS)" > $@

$(VENV)/.installed: pyproject.toml $(VENV)/.pip-args
	@echo "Installing Latentia into $(VENV) (once)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-%: pyproject.toml $(VENV)/.pip-args
	@echo "Installing Latentia with the extra '$*' into $(VENV) (once)"
	@$(PIP) --editable '.[$*]'
	@touch $@ $(VENV)/.installed
