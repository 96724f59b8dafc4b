PYTHON ?= python

.PHONY: check lint types test night extension build

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

# After an edit of csrc: compiles what changed and installs the clone as editable. Needs what `pip install ".[test]"` brings.
extension:
	$(PYTHON) -m pip install --no-build-isolation --no-deps -C build-dir=build/extension -e .

build:
	$(PYTHON) -m pip wheel . --no-deps --wheel-dir dist
