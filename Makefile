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
	@command -v uv >/dev/null || [ -x .tools/bin/uv ] || scripts/install-uv
	@$(UV) sync --locked --quiet

.PHONY: system
system: ## a Java runtime and mosquitto: found, or installed from the distribution
	@scripts/system-packages

.PHONY: check
check: setup ## format, lint, types, import rules, lock
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(RUN) lint-imports
	$(RUN) python -m headrace_schemas.generate --check
	$(UV) lock --check

.PHONY: format
format: setup ## rewrite the code in the project's format
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

.PHONY: test
test: system setup ## set everything up and pass the tests, two files at a time
	$(RUN) pytest -m "not soak" -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0

.PHONY: soak
soak: system setup ## the long runs: 1,000,000 steps of each simulation, never over with up to 8 processes, all marked soak
	for n in 1 2 4 8; do HEADRACE_NEVER_OVER_S=60 HEADRACE_NEVER_OVER_PROCESSES=$$n \
	  $(RUN) pytest --timeout=3600 tests/chaos/test_never_over_processes.py || exit 1; done
	HEADRACE_CHAOS_KILLS=5 $(RUN) pytest --timeout=3600 tests/chaos/test_local_stack.py
	$(RUN) pytest --timeout=3600 -m soak
	$(RUN) pytest --timeout=3600 --hypothesis-profile=random tests/model tests/unit
	HEADRACE_SIM_STEPS=1000000 $(RUN) pytest --timeout=3600 tests/model/test_batching_simulation.py \
	  tests/model/test_registration_simulation.py tests/model/test_timeline_simulation.py

.PHONY: mutants
mutants: setup ## change the engines' code bit by bit: which changes does no test see? ONLY="pattern ..." for some
	@mkdir -p mutants && rm -rf mutants/src mutants/tests && cp -rp core/src tests pyproject.toml mutants/
	$(RUN) bash -c 'cd mutants && mutmut run $(ONLY)'
	$(RUN) bash -c 'cd mutants && mutmut results' | grep -v ": not checked" || true

.PHONY: demo
demo: system setup ## the whole on this computer: its own readings from MQTT to the store
	@.venv/bin/headrace demo  # not by way of uv, which keeps the terminal's death (SIGHUP) to itself

.PHONY: bench
bench: setup ## figures beside their targets: engines, capacity (6 minutes), streams, bridge, the Spark writer (half an hour each); ONLY="streams --quick": one
ifdef ONLY
	$(RUN) python -m bench $(ONLY)
else
	$(RUN) python -m bench engines --json
	$(RUN) python -m bench capacity --json
	$(RUN) python -m bench streams --json
	$(RUN) python -m bench bridge --json
	$(RUN) python -m bench spark --json
endif

.PHONY: up
up: ## build and start all in Docker, wait until healthy, print where it listens
	docker compose up --build --detach --wait
	@printf '  %-9s %s\n' \
	  MQTT     "mqtt://127.0.0.1:$${HEADRACE_MQTT_PORT:-1883}" \
	  Kafka    "127.0.0.1:$${HEADRACE_KAFKA_PORT:-9092}  (topics headrace.*)" \
	  API      "http://127.0.0.1:$${HEADRACE_API_PORT:-8080}" \
	  bridge   "http://127.0.0.1:$${HEADRACE_BRIDGE_PORT:-8081}/metrics" \
	  streams  "http://127.0.0.1:$${HEADRACE_STREAMS_PORT:-8082}/metrics" \
	  database "postgresql://headrace:headrace@127.0.0.1:$${HEADRACE_POSTGRES_PORT:-5432}/headrace  (table measurements)" \
	  publish  "docker compose --profile demo run --rm publisher"

.PHONY: down
down: ## stop what `make up` started; its volumes stay (docker compose down --volumes deletes them)
	docker compose --profile demo --profile two-writers down
