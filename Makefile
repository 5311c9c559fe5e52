# Everything starts here; `make help` lists it. A machine needs Python ≥ 3.11, Java ≥ 17 and make.

SHELL := /bin/sh
.DEFAULT_GOAL := help
BIN := .venv/bin
PB := reliable_channel/core/wire/_pb
PROTOC = $(BIN)/python -m grpc_tools.protoc -I proto
UV := 0.13.9
CORE_TESTS = tests/unit/segmentation tests/unit/sds tests/unit/test_rate_limit.py $(wildcard tests/unit/test_wire_*.py)
HERE = not node and not waku and not nim
PARALLEL = $(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder
SOAK = SOAK_SECONDS=$(or $(SOAK_SECONDS),600)
# Collecting all tests takes a quarter of a minute.
FILES_WITH = $$(grep -rlE --include='test_*.py' 'mark\.$(1)\b' tests)
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock"

# Compiled modules are kept, also where an image says otherwise: collecting the tests takes twice as long without.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup docs docs-serve docs-pages screenshots notebooks demo test test-slow test-faults test-long test-e2e test-node test-nim coverage fuzz soak bench lint format proto proto-check dist executors lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '%-18s %s\n' "$$name" "$$text"; done

setup:  ## virtual environment, locked dependencies, jars; a second time repeats nothing
	@PYTHONDONTWRITEBYTECODE=$(PYTHONDONTWRITEBYTECODE) scripts/setup.sh

demo: setup  ## play a conversation through a real Kafka and the jobs; a delivery report checked against the truth
	@$(BIN)/reliable-channel demo

test: setup  ## all tests that need only Python and Java; HYPOTHESIS_PROFILE=full for four times as many examples of each property
	@$(PARALLEL) -m "$(HERE) and not slow and not faults" $(addprefix --ignore=,$(WITHOUT)) tests

test-slow: setup  ## the tests that take a minute or more, or a broker beside a Spark session
	@$(PARALLEL) -m "$(HERE) and slow and not faults" $(call FILES_WITH,slow)

test-faults: setup  ## whole runs killed at several points and started again, and a soak of SOAK_SECONDS=600
	@$(SOAK) $(PARALLEL) -m "$(HERE) and faults" $(call FILES_WITH,faults)

test-long: setup  ## test-slow and test-faults in one run, where no worker waits for the last test of the first
	@$(SOAK) $(PARALLEL) -m "$(HERE) and (slow or faults)" $(call FILES_WITH,(slow|faults))

test-e2e: setup  ## the tests that need Node or a browser
	@scripts/test-e2e.sh

test-node: setup  ## the tests against running Waku nodes: builds go-waku once (Go 1.23 or newer), then runs them
	@scripts/test-node.sh

test-nim: setup  ## the tests against nim-sds itself: NIM=compiler NIM_SOURCES=folder of nim-sds and its packages; SEEDS=3
	@NIM=$(NIM) NIM_SOURCES=$(NIM_SOURCES) SEEDS=$(or $(SEEDS),3) $(BIN)/python -m pytest -m nim tests/interop/test_nim_peer.py

fuzz: setup  ## hostile inputs against every boundary: SECONDS=60, SEED=… to repeat; a failure becomes a test case
	@$(BIN)/python -W ignore -m tests.fuzz --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

coverage: setup  ## line and branch coverage of the protocol core by its unit tests; fails below 98 %
	@$(BIN)/python -m coverage erase
	@$(BIN)/python -m coverage run -m pytest -q -n 2 -p no:cacheprovider $(CORE_TESTS)
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report

soak: setup  ## mixed traffic with maintenance, retention, verdicts and alerts beside it: SECONDS=600, RATE=100; checked in the end. PEAK=10: for five minutes ten times the rate; CHAOS=1: with faults, SEED=1, RATE=30
	@$(BIN)/python -m $(if $(CHAOS),tests.chaos --seed $(or $(SEED),1),tests.soak --peak $(or $(PEAK),1)) --seconds $(or $(SECONDS),600) --rate $(or $(RATE),$(if $(CHAOS),30,100))

bench: setup  ## measure everything and renew the table of docs/measurements.md; ends well whether targets are met or missed
	@$(BIN)/python -m bench --page docs/measurements.md

lint: setup  ## format, style and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: setup  ## format and repair what can be repaired
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: setup  ## the documentation site in build/site, every link and picture checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file conf/mkdocs.yml
	@$(BIN)/python -m scripts.check_site build/site

docs-serve: setup  ## the same on http://127.0.0.1:8000, rebuilt while one writes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --config-file conf/mkdocs.yml --dev-addr 127.0.0.1:8000

screenshots: setup  ## play the demo and renew docs/assets/screens from its tables, and what pages print (needs Chromium)
	@[ -d build/demo-bad-day/truth ] || $(BIN)/reliable-channel demo --bad-day
	@$(BIN)/reliable-channel demo
	@$(BIN)/python -m scripts.screenshots

notebooks: setup  ## renew docs/rendered, the notebooks with their results, from the demo's tables
	@[ -d build/demo/truth ] || $(BIN)/reliable-channel demo
	@[ -d build/demo-bad-day/truth ] || $(BIN)/reliable-channel demo --bad-day
	@$(BIN)/python -m scripts.notebooks

docs-pages: setup  ## write the generated pages of docs/ anew: tables, configuration, command line, REST
	@$(BIN)/python -m scripts.reference

proto: setup  ## generate the protobuf code from proto/
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
		$(PROTOC) --python_out="$$fresh" --pyi_out="$$fresh" proto/*.proto && \
		rm -f $(PB)/*_pb2.py $(PB)/*_pb2.pyi && cp "$$fresh"/*_pb2.py "$$fresh"/*_pb2.pyi $(PB)

proto-check: setup  ## fail when the generated code is not what proto/ gives
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
		$(PROTOC) --python_out="$$fresh" --pyi_out="$$fresh" proto/*.proto && \
		for file in "$$fresh"/* $(PB)/*_pb2.py*; do \
			cmp -s "$$fresh/$$(basename "$$file")" "$(PB)/$$(basename "$$file")" || { \
				echo "$(PB)/$$(basename "$$file") is not current: run make proto and commit." >&2; exit 1; }; \
		done

dist: setup  ## the wheel, and dist/reliable_channel.zip for spark-submit --py-files
	@rm -rf dist
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@cp dist/reliable_channel-*.whl dist/reliable_channel.zip

executors: setup  ## dist/executors.tar.gz: the dependencies for spark-submit --archives (docs/scale-out.md)
	@$(BIN)/python scripts/pack_executors.py dist/executors.tar.gz

lock:  ## resolve the dependencies anew into requirements*.lock
	@$(BIN)/python -m pip install --quiet uv==$(UV)
	@$(COMPILE) --group build --output-file requirements-build.lock
	@$(COMPILE) pyproject.toml --extra all --group dev --output-file requirements.lock
	@$(COMPILE) pyproject.toml --extra pipeline --extra report --extra api --constraint requirements.lock --output-file requirements-runtime.lock
	@$(COMPILE) tests/clients/requirements.in --output-file tests/clients/requirements.lock
	@$(COMPILE) tests/object_store/requirements.in --output-file tests/object_store/requirements.lock
	@$(COMPILE) tests/kubernetes/requirements.in --output-file tests/kubernetes/requirements.lock

clean:  ## remove what was built and what ran here; the jar cache of the user stays
	@if [ -x $(BIN)/reliable-channel ]; then $(BIN)/reliable-channel kafka stop >/dev/null 2>&1 || true; fi
	@rm -rf .venv run build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage spark-warehouse
	@find . -name __pycache__ -type d -not -path './.git/*' -exec rm -rf {} +
