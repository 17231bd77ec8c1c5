# Each target sets up what it needs: a virtual environment with the locked versions, made once and reused.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PEERS := benchmarks/.venv/.ready

.PHONY: demo test lint docs bench bench-quick stack stack-down deploy lock clean

demo: $(READY)
	@test -e datasets/demo/dataset.toml || $(BIN)/fedlin simulate demo --dataset demo --seed 0
	$(BIN)/fedlin train demo --config deployments/demo.toml

test: $(READY) .venv/.browser
	$(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Into build/docs: warnings are errors (mkdocs.yml), and nothing is fetched.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "in build/docs; to read it: $(BIN)/python -m http.server --directory build/docs --bind 127.0.0.1 8800"

# Into benchmarks/RESULTS.md and results.json; the quick one, which says little, into build/benchmarks.
bench: $(READY) $(PEERS)
	$(BIN)/python -m benchmarks

bench-quick: $(READY) $(PEERS)
	$(BIN)/python -m benchmarks --quick

stack: $(READY)
	$(BIN)/python -m flows.stack up

stack-down: $(READY)
	$(BIN)/python -m flows.stack down

# To PREFECT_API_URL; where that is not set, to the stack that is up.
deploy: $(READY)
	@if test -z "$$PREFECT_API_URL" && test -e .stack/env; then . ./.stack/env; fi; $(BIN)/python -m flows.deploy

# Needs uv. The lock holds versions and hashes, and no address: pip takes it with whatever index it is set up for.
LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet

lock:
	$(LOCK) pyproject.toml --group dev --output-file requirements.lock
	$(LOCK) benchmarks/requirements.in --output-file benchmarks/requirements.lock

# The tests of reports use the machine's Chromium, or else one of Playwright's, which needs no root; without either they are skipped.
.venv/.browser: $(READY)
	@command -v chromium chromium-browser google-chrome >/dev/null || $(BIN)/playwright install --only-shell chromium || \
	    echo "no Chromium: the tests of reports in a browser are skipped; apt-get install chromium brings one" >&2
	@touch $@

clean:
	rm -rf .venv benchmarks/.venv

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "fedlin needs Python 3.11 or newer; name one, as in: make demo PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# What the benchmarks compare with. Where it cannot be installed they leave it out, and say so.
$(PEERS): benchmarks/requirements.lock $(READY)
	@{ $(PYTHON) -m venv benchmarks/.venv && \
	    benchmarks/.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $< && touch $@; } || \
	    { rm -rf benchmarks/.venv; echo "the peers could not be installed, and are left out" >&2; }
