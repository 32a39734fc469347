# Everything sets itself up: a machine needs Python 3.11 or newer and make, nothing more.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PURE := daemon/crrd/core/*,daemon/crrd/kubelet/*,forecast/crrd_forecast/hash/*,localnode/crrd_localnode/planner/*

.DEFAULT_GOAL := help
FAST := tests/core tests/kubelet tests/lib tests/node tests/kube tests/cri tests/manager

.PHONY: help demo check test soak lint format stubs bench compare mutants pictures docs lock install-manifests release runtime clean

help: ## Show what there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 28

PROJECTS := pyproject.toml forecast/pyproject.toml localnode/pyproject.toml
$(BIN)/python:
	@echo "setting up: a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# uv installs in seconds what takes pip a minute; pip does it where uv cannot reach the index.
OWN := --editable ./localnode --editable ./forecast
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
install = $(PIP) uv && $(BIN)/uv pip install --quiet --python $(BIN)/python $(OWN) --editable $(1) || $(PIP) $(OWN) --editable $(1)
$(READY): $(PROJECTS) | $(BIN)/python
	@echo "setting up: installing crrd and its tools into $(VENV) (up to a minute)"
	@$(call install,'.[dev]')
	@touch $@ $(VENV)/.demo

$(VENV)/.demo: $(PROJECTS) | $(BIN)/python
	@echo "setting up: installing crrd and its local node into $(VENV) (half a minute)"
	@$(call install,.)
	@touch $@

demo: $(VENV)/.demo ## Show a container recreated on a local node (DEMO="--cri-endpoint ..." for more)
	@$(BIN)/crrd demo $(DEMO)

check: lint ## Before a commit: style, types, imports and the fast tests of daemons and core
	$(BIN)/python -m pytest -n auto --dist worksteal $(FAST)

# Processes start in half the time if Python may keep what it has compiled, whatever the environment says. Each worker
# collects all tests, so they are compiled before, once, by a collection that is not measured.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(READY) runtime ## Run all tests, real containerd included where it can be had
	@rm -f .coverage .coverage.*
	@$(BIN)/python -m pytest --collect-only -q $(PYTEST) >/dev/null || true
	$(BIN)/coverage run -m pytest -n auto --dist worksteal $(PYTEST)
	@$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include='$(PURE)' --fail-under=100
	$(BIN)/coverage report --omit='$(PURE)' --fail-under=90

soak: $(READY) ## Run the node daemon's simulation until stopped (SCHEDULES=100000 for so many, DAYS=20 for long ones, KIND=images, pods or changes, SEED=n to tell one)
	@SEED=$(SEED) SCHEDULES=$(SCHEDULES) DAYS=$(DAYS) KIND=$(KIND) $(BIN)/python -m tests.simulation

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

bench: $(READY) $(if $(CLUSTER),,runtime) ## Measure: 30 pods on real containerd and more; CLUSTER=1 or CLUSTER=pods for a real cluster
	$(BIN)/python -m tests.bench$(if $(filter pods,$(CLUSTER)),.whole_pod,$(if $(CLUSTER),.cluster))

compare: $(READY) ## Measure ways to restart side by side: CLUSTER=FOLDER of a cluster on this machine (KRUISE=FOLDER for OpenKruise)
	@test -n "$(CLUSTER)" || { echo "say where: make compare CLUSTER=FOLDER, of python -m tests.tools.cluster --nodes 3" >&2; exit 2; }
	@$(BIN)/python -m tests.bench.compare $(CLUSTER) $(if $(KRUISE),--kruise $(KRUISE) --kruise-version '$(KRUISE_VERSION)')

mutants: $(READY) ## Count which small wrongs the fast tests find (COUNT=400 SEED=1); PLANTED=1: who finds planted bugs
	@$(BIN)/python -m tests.tools.$(if $(PLANTED),planted,mutants $(or $(COUNT),400) $(or $(SEED),1))

pictures: $(READY) runtime ## Draw docs/recreate.svg, and docs/monitoring.png from real containerd and Prometheus
	$(BIN)/python -m tests.tools.recording
	$(BIN)/python -m tests.tools.pictures

docs: $(READY) ## Build the website from the pages: site/index.html
	@$(BIN)/python -m tests.tools.site

# What the image is built from, for every Python and machine: exact versions, each file by its hash.
LOCKED := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'
# What `kubectl recreate` does not import, and crrd itself, which is not on the index.
NOT_IN_CLI := crrd crrd-forecast cffi cryptography grpcio prometheus-client protobuf pycparser cronsim tzdata
lock: $(READY) ## Renew locks: the versions of what image and kubectl-recreate are built from, with hashes
	@mkdir -p locks
	$(LOCKED) pyproject.toml --output-file locks/image.txt
	$(LOCKED) pyproject.toml --extra cli $(NOT_IN_CLI:%=--no-emit-package %) --output-file locks/cli.txt
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		| $(LOCKED) - --output-file locks/build.txt

# Needs kubectl. Who applies the file needs nothing but kubectl either.
VARIANT ?= default
install-manifests: ## Write install.yaml: IMAGE=registry/crrd:tag, for other nodes VARIANT=overlays/k3s
	@test -n "$(IMAGE)" || { echo "say which image: make install-manifests IMAGE=registry.example/crrd:0.1.0" >&2; exit 2; }
	@kubectl kustomize manifests/$(VARIANT) > install.yaml.part
	@sed 's|^\( *\)image: crrd:.*|\1image: $(IMAGE)|' install.yaml.part > install.yaml
	@rm install.yaml.part
	@grep -q 'image: $(IMAGE)$$' install.yaml || { rm install.yaml; echo "manifests/$(VARIANT) names no image of crrd" >&2; exit 1; }
	@echo "install.yaml: kubectl apply -f install.yaml"

# Needs git and kubectl, and buildah for the image. IMAGE_NEEDED=1: fail where no image can be built.
release: $(READY) ## Fill dist with a release of the last commit: VERSION=0.1.0 IMAGE=registry.example/crrd
	@test -n "$(VERSION)" && test -n "$(IMAGE)" || \
		{ echo "say what to release: make release VERSION=0.1.0 IMAGE=registry.example/crrd" >&2; exit 2; }
	@$(BIN)/python -m tests.tools.release $(VERSION) $(IMAGE) $(if $(URL),--url $(URL)) $(if $(BUILDER),--builder $(BUILDER)) \
		$(if $(SOURCE),--source $(SOURCE)) $(MACHINES:%=--machine %) $(if $(BASE_IMAGE),--base-image $(BASE_IMAGE)) $(if $(IMAGE_NEEDED),--image-needed)

# The only thing that is ever installed outside this folder, and only as root on Debian.
runtime:
	@sh tests/tools/install-runtime.sh

clean: ## Remove what was set up and generated (not cri_stubs)
	rm -rf $(VENV) build dist site *.egg-info .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
