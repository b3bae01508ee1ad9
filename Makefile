# Everything the project needs is installed into .venv, with the versions in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The stamp depends on the pinned versions: changing them, or pyproject.toml, installs again.
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.installed-docs

# With LOCKED=1, as in CI, every package must have a hash that .ci/requirements.txt lists. Only torch has none: its builds
# for CPUs and for GPUs are different files of the same version.
ifdef LOCKED
LOCK := .ci/requirements.txt
endif

.PHONY: install demo test check format docs docs-serve notebooks bench bench-peers lock audit clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(LOCK)
	$(PYTHON) -m venv $(VENV)
ifdef LOCKED
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
else
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,flower]'
endif
	touch $@

demo: $(STAMP)
	$(BIN)/fedsat compare --methods fedavg,scaffold,fedsat --target 85 --out runs/demo

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist loadfile

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation, as pages in site/; a warning is an error.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# Runs the notebooks of the documentation and stores their outputs in them.
notebooks: $(DOCS)
	$(BIN)/jupyter-execute --inplace docs/*.ipynb

$(DOCS): $(STAMP)
ifndef LOCKED
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
endif
	touch $@

bench: $(STAMP)
	$(BIN)/python benchmarks/engines.py

# Writes the packages of the image and of CI with their hashes, from pyproject.toml and constraints.txt.
UNLOCKED := torch triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc \
    nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse \
    nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx
COMPILE = $(BIN)/uv pip compile pyproject.toml --quiet --constraint constraints.txt --universal --python-version 3.11.5 \
    --generate-hashes --no-header --no-annotate --upgrade $(addprefix --no-emit-package ,$(UNLOCKED))

lock: $(STAMP)
	$(COMPILE) --extra flower --output-file deploy/requirements.txt
	$(COMPILE) --extra flower --extra dev --extra docs --output-file .ci/requirements.txt

# Checks every installed package against published advisories; fails if one is vulnerable or cannot be checked.
audit: $(STAMP)
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+.*//; s/ @.*//' > $(VENV)/audit/installed.txt
	$(VENV)/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement $(VENV)/audit/installed.txt

# Installs Flower, pfl and FedJAX, which `make bench` compares with.
bench-peers:
	$(PYTHON) -m venv $(VENV)-bench
	$(VENV)-bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'

clean:
	rm -rf $(VENV) $(VENV)-bench build site .pytest_cache .mypy_cache .ruff_cache src/*.egg-info
