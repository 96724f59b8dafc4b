PYTHON ?= python

.PHONY: check lint types test night clients ray gpu gpu-wheels extension wheel image

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

# Programs of others against servers of `ridgeline`, the one on the path, or RIDGELINE=…; VENV=… keeps their environment.
clients:
	tests/clients/run.sh $(VENV)

# Engines on a Ray cluster of two nodes here, in namespaces: needs root, iproute2 and nftables; VENV=… keeps the environment.
ray:
	tests/deploy/ray.sh $(VENV)

# A visit to a machine with a GPU: facts, tests, speeds, the table of docs/gpu.md, in build/gpu or $OUT. ARGS=1, 2, 3 or 4 is a part of nine
# minutes; ARGS=--dry-run goes through all of it without a GPU.
gpu:
	$(PYTHON) tests/gpu_visit/visit.py $(ARGS)

# What such a machine may lack, as wheels in build/gpu-wheels.
gpu-wheels:
	$(PYTHON) tests/gpu_visit/wheels.py

# After an edit of csrc: compiles what changed and installs the clone as editable. Needs what `pip install ".[test]"` brings.
extension:
	$(PYTHON) -m pip install --no-build-isolation --no-deps -C build-dir=build/extension -e .

# A wheel for this Python, with the oldest platform tag that its symbols allow. Needs what `pip install ".[wheel]"` brings.
wheel:
	rm -rf build/wheel
	$(PYTHON) -m pip wheel . --no-deps --wheel-dir build/wheel
	$(PYTHON) -m auditwheel repair --wheel-dir dist build/wheel/*.whl

# The image of deploy/Dockerfile without a container engine, on a Debian root of its own. Needs root, buildah and debootstrap.
image:
	deploy/image.sh
