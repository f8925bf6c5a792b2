# make demo: set up and compare all policies; make test: set up and run every test.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
OUT ?= out
READY := $(VENV)/.ready

# SGLang on a CPU, for the tests and for `topas live` without a GPU: about 2 minutes, 3 GB.
SERVING := .serving
SERVED := $(SERVING)/.ready

.PHONY: demo test serving lint format bench figures optimality evaluation fit-table-1 structure clean
# Both environments write topas.egg-info.
.NOTPARALLEL:

# The interpreter may be called python3 only; any 3.11 or later will do.
$(READY): pyproject.toml
	$(if $(shell command -v $(PYTHON)),$(PYTHON),python3) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

$(SERVED): pyproject.toml $(shell find serving -type f -not -path '*/__pycache__/*')
	$(if $(shell command -v $(PYTHON)),$(PYTHON),python3) serving/install.py $(SERVING)

demo: $(READY)
	$(BIN)/topas compare chain-3 dag-4 --loads 0.5,1.0 --tasks 60 --seeds 1,2,3 --profile study --plot -o $(OUT)/demo
	@echo
	@echo "Files: $(OUT)/demo (report.md, results.csv, results.parquet, summary.csv, figure.png)"
	@echo "Next, on a trace of your own:"
	@echo "  $(BIN)/topas check my-trace.jsonl"
	@echo "  $(BIN)/topas compare my-trace.jsonl -o $(OUT)/mine"
	@echo "Formats: docs/formats.md. All commands: $(BIN)/topas --help"

test: $(READY) $(SERVED)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not serving'
	$(BIN)/python -m pytest -m serving

serving: $(SERVED)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m compare.bench

fit-table-1: $(READY)
	$(BIN)/python -m compare.table1 --fit

figures: $(READY)
	$(BIN)/python -m compare.figures -o $(OUT)/figures

optimality: $(READY)
	$(BIN)/python -m compare.optimality -o $(OUT)/optimality

# Recorded sessions are no part of the repository: make evaluation SESSIONS='a.jsonl b.jsonl'
evaluation: $(READY)
	$(BIN)/python -m compare.evaluation -o $(OUT)/evaluation $(if $(SESSIONS),--sessions $(SESSIONS))

# How large the code is, and what stands twice: make structure REV='c9f49fc v1'
structure: $(READY)
	$(BIN)/python tools/structure.py $(REV) $(if $(PAIRS),--pairs)

clean:
	rm -rf $(VENV) $(SERVING) $(OUT)
