# Everything starts here and needs only make and Python >= 3.11: the first target that needs packages makes .venv.
#   make demo                 the story, on a real cluster of its own
#   make test                 all tests that this host can run
#   make help                 the rest

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --no-builtin-rules

# The first interpreter that is new enough; PYTHON=... on the command line decides otherwise.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$p"; exit; }; done; \
	command -v python3)
ROOT := $(CURDIR)
PY := $(ROOT)/.venv/bin/python

# A missing or read-only home: tools get one under .cache instead of writing to a folder named "~".
ifeq ($(shell [ -n "$$HOME" ] && [ -d "$$HOME" ] && [ -w "$$HOME" ] && echo yes),)
export HOME := $(ROOT)/.cache/home
endif
# Machines without certificate authorities: the ones that the set-up found, see tools/bootstrap.py.
ifneq ($(wildcard $(ROOT)/.cache/ca-certificates.crt),)
ifeq ($(SSL_CERT_FILE)$(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem),)
export SSL_CERT_FILE := $(ROOT)/.cache/ca-certificates.crt
endif
endif
# Local clusters are never reached through a proxy.
comma := ,
export NO_PROXY := $(if $(NO_PROXY),$(NO_PROXY)$(comma),$(if $(no_proxy),$(no_proxy)$(comma)))localhost,127.0.0.1,::1
export no_proxy := $(NO_PROXY)
export PYTHONUNBUFFERED := 1
unexport PYTHONHOME PYTHONPATH VIRTUAL_ENV

.PHONY: help bootstrap demo test test-long ci lint format bench images build lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20
	@echo '  variables: PYTHON=, CLUSTER=auto|local|kind|current, KEEP=1 (demo), STAGES="unit integration", ARGS="-k word" (test)'

bootstrap: ## make .venv from the lock file (all others do it themselves)
	@if [ -z "$(PYTHON)" ]; then echo 'Python 3.11 or newer is needed and none was found. Debian, Ubuntu: apt-get install -y python3' >&2; exit 2; fi
	@mkdir -p "$(ROOT)/.cache/home"
	@"$(PYTHON)" tools/bootstrap.py

demo: bootstrap ## the story on a real cluster; CLUSTER=local|kind|current picks one, KEEP=1 leaves it up
	@exec "$(PY)" -m e2e.demo --cluster "$(or $(CLUSTER),auto)"

test: bootstrap ## all tests this host can run; STAGES= and ARGS= narrow it
	@exec "$(PY)" -m tools.run_tests --stages "$(STAGES)" -- $(ARGS)

test-long: bootstrap ## the tests that exceed the time budget of make test
	@exec "$(PY)" -m tools.run_tests --stages "$(or $(STAGES),long)" -- $(ARGS)

ci: bootstrap ## lint and make test with the strictness of CI
	@exec env CI=true "$(PY)" -m tools.run_tests --lint --stages "$(STAGES)" -- $(ARGS)

lint: bootstrap ## ruff, mypy --strict, layers
	@exec "$(PY)" -m tools.run_tests --lint --stages none

format: bootstrap ## let ruff format and fix
	@exec "$(PY)" -m ruff check --fix-only --quiet .
	@exec "$(PY)" -m ruff format .

bench: bootstrap ## throughput and latency
	@if [ -d bench ]; then "$(PY)" -m bench $(ARGS); else echo 'no benchmarks in this tree yet' >&2; exit 2; fi

build: bootstrap ## cluster binaries, into a cache of this user (test and demo do it themselves)
	@exec "$(PY)" -m e2e build $(ARGS)

images: bootstrap ## container images, without a Docker daemon
	@exec "$(PY)" -m e2e images $(ARGS)

lock: bootstrap ## resolve requirements.lock anew from pyproject.toml
	@exec "$(PY)" -m tools.lock $(ARGS)

clean: ## remove .venv and caches of this clone; clusters: python -m e2e down
	@rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
