# Three commands matter: `make serve` runs a demonstration, `make quick` checks your changes, `make test` checks everything.
# Each target sets up what it needs and downloads nothing if nothing changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.up-to-date
COMPILED_SOURCES := hatch_build.py src/perseid/compiled/*.c src/perseid/compiled/*.h src/perseid/compiled/*.pyx
# The PostgreSQL server for tests, at Debian's path.
POSTGRES := /usr/lib/postgresql/15/bin/postgres
# A browser and a link checker for the tests of web pages.
BROWSER := /usr/bin/chromium
LINKCHECKER := /usr/bin/linkchecker
# The MariaDB server for tests of migration; the package starts no server for the whole machine.
MARIADB := /usr/sbin/mariadbd
NGINX := /usr/sbin/nginx
# The server without the package that starts it.
APACHE := /usr/sbin/apache2
CADDY := /usr/bin/caddy
HAPROXY := /usr/sbin/haproxy
# Checks the units.
SYSTEMD := /usr/bin/systemd-analyze
# Creates the root file system in which the steps of Containerfile are tested.
MMDEBSTRAP := /usr/bin/mmdebstrap
# Compiles the load generator of the benchmarks.
COMPILER := /usr/bin/cc
# Runs the compiled module in `make fuzz`.
VALGRIND := /usr/bin/valgrind
UNDER_VALGRIND := PYTHONMALLOC=malloc $(VALGRIND) -q --error-exitcode=1 --suppressions=fuzz/valgrind.supp
# The C library of the compiled module; without it everything runs in Python.
LMDB := /usr/include/lmdb.h
# What the benchmarks compare with, and what sends the requests; for DNS and for HTTP.
DNS_SERVERS := /usr/sbin/knotd /usr/sbin/nsd
LOAD_GENERATORS := /usr/bin/dnsperf /usr/bin/wrk
# Where `make wheel` writes.
DIST ?= dist
# `make wheel COMPILED=1` builds a wheel with the compiled module, for this Python and machines like this one.
COMPILED ?=
# The directory of the demonstration of `make serve`, and more options for `perseid serve` or for `python -m bench`.
DIR ?= demo-data
OPTIONS ?=
# The number of test processes: five for two cores, because many tests wait for servers.
JOBS ?= $(shell expr 5 \* $$(nproc) / 2)
# Each process runs whole files, so that a server or browser is started once per file. tests/conftest.py sets the order.
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder
# The tests start hundreds of programs; without bytecode files each would compile everything.
unexport PYTHONDONTWRITEBYTECODE
# Examples of each property test: EXAMPLES in the environment (20).
# Seconds for each fuzz target.
FUZZ_SECONDS ?= 60
# Requests for each route of the API in `make fuzz`, and examples for the tests with models.
FUZZ_REQUESTS ?= 100
# Rounds of `make crash`.
CRASH_ROUNDS ?= 200
# Records that `make crash` rewrites and restores while it kills the job.
CRASH_RECORDS ?= 100000
# Seconds of `make soak`.
SOAK_SECONDS ?= 600
# The Debian release and the version of `make postgres`.
SUITE ?= trixie
VERSION ?= 17
# `make test PACKAGE=registry` tests only one package: lint, then tests/registry.
PACKAGE ?=
# Python files that differ from HEAD.
CHANGED = $(shell git diff --name-only --diff-filter=d HEAD -- '*.py'; git ls-files --others --exclude-standard -- '*.py')

# The environment belongs to one Python. PYTHON=... with another one creates it again; without PYTHON it is kept.
ifneq ($(origin PYTHON),file)
ifneq ($(shell $(PYTHON) -c 'import os, sys; print(os.path.realpath(sys.executable))'),$(shell sed -n 's/^executable = //p' $(VENV)/pyvenv.cfg 2>/dev/null))
OTHER_PYTHON := other-python
endif
endif

.PHONY: help env programs wheel serve soak test alltests quick bytecode coverage lint fuzz crash bench screenshots lock unicode format clean $(OTHER_PYTHON)

help:  ## show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## */\1\t/' | expand -t 10

env: $(STAMP)  ## create or update .venv with the locked versions

# On Debian, python3-venv is a separate package.
$(STAMP): requirements.lock pyproject.toml src/perseid/__init__.py $(wildcard $(COMPILED_SOURCES)) $(OTHER_PYTHON)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is required; choose one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || tools/debian-packages python3-venv
	@[ -z "$(OTHER_PYTHON)" ] && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@[ -e $(LMDB) ] || ! command -v apt-get >/dev/null || tools/debian-packages gcc libc6-dev liblmdb-dev || true
	@echo "Installing into $(VENV), about a minute ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# Always the same bytes for the same files: hatchling sorts them and gives them one date.
wheel: env  ## build the wheel for an installation without a checkout, in dist/ (COMPILED=1 with the compiled module)
	PERSEID_BUILD=$(if $(COMPILED),compiled,pure) $(BIN)/hatchling build --target wheel --directory $(DIST)

serve: env  ## run a server with demonstration data (DIR=demo-data, OPTIONS="--native-port 0 --http-port 0 --metrics-port 0")
	@exec $(BIN)/perseid serve -d $(DIR) --init-demo $(OPTIONS)

ifeq ($(PACKAGE),)
test:  ## lint and all tests, in parallel; PACKAGE=registry for one package
	@$(MAKE) --no-print-directory --jobs=2 env programs
	@$(MAKE) --no-print-directory --jobs=2 lint alltests

# Beside lint, which needs one core for a minute.
alltests: bytecode
	$(BIN)/python -m pytest $(PARALLEL) --durations=20
else
test: env lint
	$(BIN)/python -m pytest $(PARALLEL) tests/$(PACKAGE)
endif

# The tests that need PostgreSQL most.
postgres: env $(MMDEBSTRAP)  ## test ledger, nodes and fail-over with the PostgreSQL of another Debian (SUITE=trixie VERSION=17)
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && tools/debian-postgres $(SUITE) $(VERSION) "$$folder" && \
	TEST_POSTGRES="$$folder/usr/lib/postgresql/$(VERSION)/bin" $(BIN)/python -m pytest tests/test_postgres_cluster.py \
		tests/server/test_nodes.py tests/server/test_failover.py tests/cli/test_cli_nodes.py \
		tests/ledger/test_ledger_outcomes.py tests/ledger/test_ledger_log.py tests/ledger/test_ledger_leases.py tests/ledger/test_ledger_backup.py

quick: env  ## lint the changed files and run the quick tests that they affect
	@[ -z "$(strip $(CHANGED))" ] || $(BIN)/ruff check $(CHANGED)
	@[ -z "$(strip $(CHANGED))" ] || $(BIN)/ruff format --check $(CHANGED)
	$(BIN)/python -m pytest $(PARALLEL) --quick $$($(BIN)/python tools/affected.py)

# Files that cannot be compiled are reported by the tests.
bytecode: env  ## compile all tests once for all test processes
	@$(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null 2>&1 || true

# Separate from `test`, because it makes tests slower, some twice as slow.
coverage: env programs  ## the same tests with branch coverage
	$(BIN)/python -m pytest $(PARALLEL) --cov --cov-report=term

# Everything that `make test` starts, and the Debian packages that do not have the name of their program.
PROGRAMS := $(POSTGRES) $(BROWSER) $(LINKCHECKER) $(MARIADB) $(NGINX) $(APACHE) $(CADDY) $(HAPROXY) $(SYSTEMD) $(MMDEBSTRAP) $(COMPILER) $(DNS_SERVERS) $(LOAD_GENERATORS)
PACKAGE_OF_postgres := postgresql-15
PACKAGE_OF_mariadbd := mariadb-server-core mariadb-client-core
PACKAGE_OF_nginx := nginx-light
PACKAGE_OF_apache2 := apache2-bin
PACKAGE_OF_systemd-analyze := systemd
PACKAGE_OF_cc := gcc libc6-dev
PACKAGE_OF_knotd := knot
packages = $(foreach program,$(notdir $(1)),$(or $(PACKAGE_OF_$(program)),$(program)))

# All packages at once, because each call of apt takes seconds.
programs: AT_ONCE := $(PROGRAMS)
programs: $(PROGRAMS)  ## install all programs that the tests start

# The tests start their own servers. Without apt nothing is installed, and the tests report what is missing.
# Until the end of the installation, a setting and a policy keep packages from creating and starting servers for the whole machine; the name servers would also start after each boot.
$(PROGRAMS) $(VALGRIND):
	@command -v apt-get >/dev/null || exit 0; \
	if [ "$$(id -u)" -eq 0 ]; then \
		cluster=/etc/postgresql-common/createcluster.d/perseid.conf policy=/usr/sbin/policy-rc.d; \
		if [ -e "$$policy" ]; then policy=; fi; \
		trap 'rm -f "$$cluster" $$policy' EXIT; \
		mkdir -p "$${cluster%/*}" && echo 'create_main_cluster = false' >"$$cluster"; \
		if [ -n "$$policy" ]; then printf '#!/bin/sh\nexit 101\n' >"$$policy" && chmod 755 "$$policy"; fi; \
	fi; \
	tools/debian-packages $(call packages,$(or $(AT_ONCE),$@)) || exit 1; \
	$(if $(filter-out $(wildcard $(DNS_SERVERS)),$(DNS_SERVERS)),systemctl --quiet disable knot nsd 2>/dev/null || true)

lint: env  ## check style, types, import contracts and licenses
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src tests tools bench fuzz hatch_build.py
	$(BIN)/lint-imports
	$(BIN)/python tools/licenses.py

format: env  ## format the code and apply the fixes of ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: env $(COMPILER) $(VALGRIND)  ## fuzz every parser (FUZZ_SECONDS each), every route of the API, the registry and the resolver (FUZZ_REQUESTS each)
	$(BIN)/python fuzz/run.py --seconds $(FUZZ_SECONDS)
	$(BIN)/python fuzz/_sanitized.py --seconds $(FUZZ_SECONDS)
	$(UNDER_VALGRIND) $(BIN)/python fuzz/_thread_rounds.py 3
	$(UNDER_VALGRIND) $(BIN)/python fuzz/_vectors.py
	EXAMPLES=$(FUZZ_REQUESTS) $(BIN)/python -m pytest -q tests/server/http/v1/test_v1_schemathesis.py \
		tests/registry/test_registry_model.py tests/server/native/test_resolution_differential.py

crash: env  ## kill processes at random times, 200 rounds, and check that no data is lost
	$(BIN)/python -m tests.ledger.crash --rounds $(CRASH_ROUNDS)
	$(BIN)/python -m tests.server.crash --rounds $(CRASH_ROUNDS)
	$(BIN)/python -m tests.registry.jobs.job_crash --records $(CRASH_RECORDS)
	$(BIN)/python -m tests.registry.jobs.import_crash --rounds 50 --bad-rows-of $(CRASH_RECORDS)
	$(BIN)/python -m tests.registry.jobs.export_crash --rounds 50
	$(BIN)/python -m tests.server.failover --rounds 50

soak: env  ## load a server while its processes are killed, check its memory (SOAK_SECONDS), and flood another
	$(BIN)/python -m tests.server.load --soak --seconds $(SOAK_SECONDS)
	EXAMPLES=100 $(BIN)/python -m pytest -q tests/server/limits/test_floods.py

screenshots: env $(BROWSER)  ## take the pictures of the documents (docs/images)
	$(BIN)/python tools/screenshots.py

bench: env $(COMPILER) $(NGINX) $(DNS_SERVERS) $(LOAD_GENERATORS)  ## compare with other servers, in one table (OPTIONS="--quick", "--handles 1000000")
	$(BIN)/python -m bench $(OPTIONS)

lock: env  ## write requirements.lock with the newest versions that pyproject.toml allows
	$(BIN)/python tools/lock.py

unicode: env  ## regenerate the character table from the pinned Unicode data
	$(BIN)/python tools/unicode_table.py

clean:  ## remove all generated files
	rm -rf $(VENV) dist build .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .coverage .coverage.* fuzz/corpus
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
