# headrace: `make help` lists what can be done here.
SHELL := /bin/bash
UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
RUN := $(UV) run --locked
.DEFAULT_GOAL := help

.PHONY: help
help: ## list all targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

.PHONY: setup
setup: ## install uv (if missing) and the locked environment
	@command -v uv >/dev/null || [ -x .tools/bin/uv ] || { python3 -m venv .tools && .tools/bin/pip install --quiet uv; }
	@$$(command -v uv || echo .tools/bin/uv) sync --locked --quiet

.PHONY: check
check: setup ## format, lint, types, import rules, lock
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports
	$(RUN) python -m headrace_schemas.docs --check
	$(UV) lock --check

.PHONY: format
format: setup ## rewrite the code in the project's format
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

.PHONY: test
test: setup ## set everything up and pass the tests
	$(RUN) pytest -m "not soak"

.PHONY: soak
soak: setup ## the simulations of the stages, 1,000,000 steps each
	HEADRACE_SIM_STEPS=1000000 $(RUN) pytest --timeout=1800 tests/model/test_batching_simulation.py tests/model/test_registration_simulation.py

.PHONY: mutants
mutants: setup ## change the engines' code bit by bit: which changes does no test see? ONLY="pattern ..." for some
	@mkdir -p mutants && rm -rf mutants/src mutants/tests && cp -rp core/src tests pyproject.toml mutants/
	$(RUN) bash -c 'cd mutants && mutmut run $(ONLY)'
	$(RUN) bash -c 'cd mutants && mutmut results' | grep -v ": not checked" || true

.PHONY: demo
demo: ## run the main job (not there yet: needs the bridge and the command line)
	@echo 'make demo: the bridge and the command line are not there yet; see "Where it stands" in README.md' >&2; exit 1
