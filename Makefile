# The commands that people, CI and documents call. Each sets up .venv first if it is not there (see .ci/setup).

.DEFAULT_GOAL := help
.SUFFIXES:

READY := .venv/.ready
RUN := .venv/bin/python -m
# Two workers: more would share the two cores that LEAP is sized for. A file's tests stay together: they share fixtures.
PYTEST := $(RUN) pytest -n 2 --dist loadfile

CHECKS := check-style check-types check-sql check-layers check-definitions check-documents

# dagster-dbt looks for `dbt` on PATH. Waiting threads of LightGBM must not spin on a small machine.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export OMP_WAIT_POLICY := passive
export PYTHONUNBUFFERED := 1
# No tool reports usage, whichever way it is started.
export DAGSTER_DISABLE_TELEMETRY := yes
export DO_NOT_TRACK := true
export DBT_SEND_ANONYMOUS_USAGE_STATS := false
export MLFLOW_DISABLE_TELEMETRY := true
export GX_ANALYTICS_ENABLED := false

.PHONY: help demo test verify check $(CHECKS) ui bench dictionary lock clean FORCE

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## run a whole night on a small simulated fleet and print what it ranks (under five minutes)
	@LEAP_HOME="$(CURDIR)/var/demo" .venv/bin/leap demo

test: $(READY) ## run the tests, without those marked slow (under ten minutes)
	@$(PYTEST) -m 'not slow'

verify: check ## run every check and every test, the slow ones too
	@$(PYTEST)

check: $(READY) ## style, types, SQL, layers, definitions, documents; goes on after a failure
	@$(MAKE) --no-print-directory --keep-going $(CHECKS)

check-style: $(READY)
	@$(RUN) ruff check
	@$(RUN) ruff format --check

check-types: $(READY)
	@$(RUN) mypy

check-sql: $(READY)
	@$(RUN) sqlfluff lint --nocolor dbt_project/models dbt_project/tests

check-layers: $(READY)
	@.venv/bin/lint-imports

check-definitions: $(READY)
	@$(RUN) pytest -q tests/graph -k load

check-documents: $(READY)
	@$(RUN) pytest -q tests/architecture

ui: $(READY) ## start the Dagster and the MLflow UI on loopback, on the state in $LEAP_HOME (default ./var)
	@.venv/bin/leap ui

bench: $(READY) ## measure LEAP against a bare engine in the same run and print ratios
	@for file in benchmarks/bench_*.py; do .venv/bin/python "$$file" || exit 1; done

dictionary: $(READY) ## write docs/data_dictionary.md anew from code, dbt YAML and params.yaml
	@$(RUN) leap.store.dictionary

# uv stays outside .venv: what resolves the lock is not part of what it locks. UPGRADE=--upgrade takes newer versions.
lock: ## resolve pyproject.toml into requirements.lock (UPGRADE=--upgrade for newer versions)
	@test -x .cache/uv/bin/uv || { "$$(sh .ci/python)" -m venv .cache/uv && .cache/uv/bin/python -m pip install -qq uv; }
	@.cache/uv/bin/uv pip compile --quiet --generate-hashes --no-strip-extras --universal --no-emit-index-url --no-annotate \
		--all-extras --python-version 3.11 $(UPGRADE) --custom-compile-command 'make lock' --output-file requirements.lock pyproject.toml

clean: ## remove .venv and caches; the state in var/ stays
	rm -rf .venv .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist
	rm -rf dbt_project/target dbt_project/logs
	find . -path ./var -prune -o -type d -name __pycache__ -exec rm -rf {} +

# Set up again where the environment is broken, or was made in another folder than this one.
ifneq ($(shell .venv/bin/python -c '' 2>/dev/null && cat $(READY) 2>/dev/null),$(CURDIR))
$(READY): FORCE
endif
$(READY): requirements.lock pyproject.toml .ci/setup
	@sh .ci/setup
