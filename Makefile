PYTHON ?= python

.PHONY: check lint types test night build

check: lint types
	$(PYTHON) -m pytest -q tests/core tests/arch

lint:
	ruff check src tests

types:
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest

night:
	$(PYTHON) -m pytest -m "night or not night" --timeout 7200 --record tests/night.jsonl
	$(PYTHON) tests/arch/nights.py

build:
	$(PYTHON) -m pip wheel . --no-deps --wheel-dir dist
