# Two commands matter: `make serve` runs the demonstration, `make test` checks everything.
# Each target sets up what it needs; nothing is downloaded when nothing changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.up-to-date
# What the tests of the PostgreSQL back end run, and where Debian puts it.
POSTGRES := /usr/lib/postgresql/15/bin/postgres
# What the tests of the web pages use: a browser, and a program that follows links.
BROWSER := /usr/bin/chromium
LINKCHECKER := /usr/bin/linkchecker
# Where `make serve` keeps the demonstration, and what else it is told.
DIR ?= perseid-data
OPTIONS ?=
# How many test processes: two for each core, because many tests wait for servers; or what the caller says.
JOBS ?= $(shell expr 2 \* $$(nproc))
# Each takes a whole file at a time: what a file starts, a server or a browser, is started once. tests/conftest.py
# says in which order.
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder
# The tests start hundreds of programs. Where Python may not keep what it has compiled, each would compile everything.
unexport PYTHONDONTWRITEBYTECODE
# Examples of each property test: EXAMPLES in the environment (50).
# How long each fuzz target runs.
FUZZ_SECONDS ?= 60
# How many requests of each route `make fuzz` makes of the description of the API.
FUZZ_REQUESTS ?= 100
# How often `make crash` kills.
CRASH_ROUNDS ?= 200
# How many names it moves, and moves back, while it kills whoever does that.
CRASH_RECORDS ?= 100000
# How long `make soak` uses a server.
SOAK_SECONDS ?= 600
# With how many records `make bench` fills ledgers; several numbers with commas between.
RECORDS ?= 10000
# With how many handles `make bench` serves installations; several numbers with commas between.
HANDLES ?= 10000

# The environment belongs to one Python. Naming another one makes it anew; naming none keeps the one that is there.
ifneq ($(origin PYTHON),file)
ifneq ($(shell $(PYTHON) -c 'import os, sys; print(os.path.realpath(sys.executable))'),$(shell sed -n 's/^executable = //p' $(VENV)/pyvenv.cfg 2>/dev/null))
OTHER_PYTHON := other-python
endif
endif

.PHONY: help env serve soak test bytecode coverage lint fuzz crash bench lock unicode format clean $(OTHER_PYTHON)

help:  ## show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## */\1\t/' | expand -t 10

env: $(STAMP)  ## make or refresh .venv with the locked versions

# python3-venv is a package of its own on Debian; other systems bring it with Python.
$(STAMP): requirements.lock pyproject.toml src/perseid/__init__.py $(OTHER_PYTHON)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || tools/debian-packages python3-venv
	@[ -z "$(OTHER_PYTHON)" ] && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

serve: env  ## make the demonstration, if it is not there yet, and serve it (DIR=perseid-data, OPTIONS="--native-port 0 --http-port 0 --metrics-port 0")
	@exec $(BIN)/perseid serve -d $(DIR) --init-demo $(OPTIONS)

test: env $(POSTGRES) $(BROWSER) $(LINKCHECKER)  ## lint, then all tests in parallel
	@$(MAKE) --no-print-directory --jobs=2 lint bytecode
	$(BIN)/python -m pytest $(PARALLEL) --durations=20

# Beside lint, which keeps one core busy. What cannot be compiled is told by the tests themselves.
bytecode: env  ## compile all tests, which otherwise each test process does for itself
	@$(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null 2>&1 || true

# Apart from `test`, because measuring it makes every test take longer, some twice as long.
coverage: env $(POSTGRES) $(BROWSER) $(LINKCHECKER)  ## the same tests with branch coverage
	$(BIN)/python -m pytest $(PARALLEL) --cov --cov-report=term

# The tests start a PostgreSQL of their own. Without apt nothing is installed, and they say what is missing.
# Debian's package would also create and start a server for the whole machine, unless a setting that it reads while it is
# being installed says no. The setting is taken back: the next PostgreSQL that somebody installs is not ours to decide on.
$(POSTGRES): | env
	@command -v apt-get >/dev/null || exit 0; \
	settings=/etc/postgresql-common/createcluster.d; \
	if [ "$$(id -u)" -eq 0 ]; then \
		trap 'rm -f "$$settings/perseid.conf"' EXIT; \
		mkdir -p "$$settings" && echo 'create_main_cluster = false' >"$$settings/perseid.conf"; \
	fi; \
	tools/debian-packages postgresql-15

$(BROWSER) $(LINKCHECKER): | env
	@command -v apt-get >/dev/null || exit 0; tools/debian-packages $(@F)

lint: env  ## style, types, the direction of imports, licences
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src tests tools bench fuzz
	$(BIN)/lint-imports
	$(BIN)/python tools/licences.py

format: env  ## let ruff format and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: env  ## throw arbitrary input at every parser (FUZZ_SECONDS each) and at every route of the API (FUZZ_REQUESTS each)
	$(BIN)/python fuzz/run.py --seconds $(FUZZ_SECONDS)
	EXAMPLES=$(FUZZ_REQUESTS) $(BIN)/python -m pytest -q tests/server/http/v1/test_v1_schemathesis.py

crash: env  ## kill writers, followers and rebuilders at random moments, 200 rounds, and look for what is lost
	$(BIN)/python -m tests.ledger.crash --rounds $(CRASH_ROUNDS)
	$(BIN)/python -m tests.registry.jobs.job_crash --records $(CRASH_RECORDS)

soak: env  ## use a server from all sides while its processes are killed, then see that memory stays flat (SOAK_SECONDS)
	$(BIN)/python -m tests.server.load --soak --seconds $(SOAK_SECONDS)

bench: env  ## print what things cost (RECORDS and HANDLES=10000,1000000 for larger ledgers and servers)
	$(BIN)/python bench/run.py
	$(BIN)/python -m bench.ledger_load --records $(RECORDS)
	$(BIN)/python -m bench.serving --handles $(HANDLES)
	$(BIN)/python -m bench.serving.api --records $(RECORDS)
	@command -v apt-get >/dev/null || exit 0; tools/debian-packages nginx-light wrk
	$(BIN)/python -m bench.serving.web

lock: env  ## choose the newest versions pyproject.toml allows and write requirements.lock
	$(BIN)/python tools/lock.py

unicode: env  ## regenerate the character table from the pinned Unicode data
	$(BIN)/python tools/unicode_table.py

clean:  ## remove everything that can be made again
	rm -rf $(VENV) dist build .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .coverage .coverage.* fuzz/corpus
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
