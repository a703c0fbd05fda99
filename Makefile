# reflectrl: the commands of a checkout. `make demo` is the quickest way to see it work.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

# What `reflectrl locate` needs of the dependencies in pyproject.toml: no torch, nothing of a developer's.
LIGHT := gymnasium jinja2 numpy rich safetensors tokenizers tyro

.PHONY: help setup locate demo test lint check docs site clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install reflectrl in it, with the tools of a developer; more: EXTRA=ray,qlora
ifdef EXTRA
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRA)]'
endif

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; say which: make setup PYTHON=python3.12" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

locate: ## make .venv-locate with what finds files in repositories and no more; EXTRA=mcp adds the server for IDEs
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; say which: make locate PYTHON=python3.12" >&2; exit 2; }
	test -x .venv-locate/bin/python || $(PYTHON) -m venv .venv-locate
	.venv-locate/bin/python -m pip install --quiet --constraint constraints.txt $(LIGHT) $(EXTRA)
	.venv-locate/bin/python -m pip install --quiet --no-deps .
	@echo 'now: .venv-locate/bin/reflectrl locate "where is ...?" --repo DIR'

demo: setup ## teach a small model to drive the dangerous taxi, on a CPU
	$(BIN)/reflectrl run taxi-demo

# Compiled modules are kept even where the environment forbids it: the tests start hundreds of processes that import the same.
# Three processes for two cores: while some tests wait for servers and killed runs, others compute.
test: setup ## run the tests, in three processes
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3

lint: setup ## formatting, lint, the English of docstrings, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python scripts/lint_prose.py
	$(BIN)/mypy

check: lint test ## all that has to pass before a commit lands

docs: setup ## write the pages that are made from the code: recipe keys and verbs
	$(BIN)/python -m reflectrl.core.config.reference > docs/recipes.md.new && mv docs/recipes.md.new docs/recipes.md
	$(BIN)/python docs/make_verbs.py > docs/verbs.md.new && mv docs/verbs.md.new docs/verbs.md

site: setup ## build the documentation into build/site; a warning is an error
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean

clean: ## remove caches and builds; runs/ and .venv stay
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
