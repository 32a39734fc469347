# Everything sets itself up: a machine needs Python 3.11 or newer and make, nothing more.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PURE := daemon/core/*,daemon/kubelet/*

.DEFAULT_GOAL := help
.PHONY: help demo test soak lint format stubs bench mutants pictures runtime clean

help: ## Show what there is to make
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

$(READY): pyproject.toml
	@test -x $(BIN)/python || { echo "setting up: a virtual environment in $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "setting up: installing crrd and its tools into $(VENV) (a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY) ## Show a container recreated on a local node (DEMO="--cri-endpoint ..." for more)
	@$(BIN)/crrd demo $(DEMO)

test: $(READY) runtime ## Run all tests, real containerd included where it can be had
	@rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -n auto --dist worksteal $(PYTEST)
	@$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include='$(PURE)' --fail-under=100
	$(BIN)/coverage report --omit='$(PURE)' --fail-under=90

soak: $(READY) ## Run the node daemon's simulation until stopped (SCHEDULES=100000 for so many, SEED=n to tell one)
	@SEED=$(SEED) SCHEDULES=$(SCHEDULES) $(BIN)/python -m tests.simulation

lint: $(READY) ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

stubs: $(READY) ## Generate cri_stubs from proto
	$(BIN)/python proto/generate.py

bench: $(READY) runtime ## Measure: 30 pods on real containerd, admission, forecast
	$(BIN)/python -m tests.bench

mutants: $(READY) ## Count which small wrongs in the core and the node the fast tests find (COUNT=400 SEED=1)
	$(BIN)/python -m tests.tools.mutants $(or $(COUNT),400) $(or $(SEED),1)

pictures: $(READY) runtime ## Draw docs/monitoring.png from a run on real containerd, with a real Prometheus
	$(BIN)/python -m tests.tools.pictures

# The only thing that is ever installed outside this folder, and only as root on Debian.
runtime:
	@sh tests/tools/install-runtime.sh

clean: ## Remove what was set up and generated (not cri_stubs)
	rm -rf $(VENV) build dist *.egg-info .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
