# Every target sets up the environment it needs; docs/install.md describes that.
# Another Python: make test PYTHON=python3.11. Other folders: VENV=..., VENV_OPENMMLAB=...
VENV ?= .venv
VENV_OPENMMLAB ?= .venv-openmmlab
# An existing environment keeps its Python, unless another one is given.
PYTHON ?= $(if $(wildcard $(VENV)/bin/pip),$(VENV)/bin/python,python3)
# Processes of the tests; each has one thread (tests/conftest.py).
JOBS ?= $(shell nproc)
BIN = $(VENV)/bin
RUN = $(BIN)/python
# Neighbors, which share fixtures, stay together in one process.
PARALLEL = -n $(JOBS) --dist worksteal
CXX_FILES = git ls-files '*.cpp' '*.h' '*.cu' '*.cuh'

.PHONY: help env env-openmmlab lint types format check test test-openmmlab demo demo-seg demo-long

help:
	@echo 'make demo            train and test Mask R-CNN on generated images'
	@echo 'make demo-seg        the same with UPerNet'
	@echo 'make demo-long       Mask R-CNN from scratch, about an hour'
	@echo 'make check           lint, types and the tests that train nothing'
	@echo 'make lint            the pre-commit hooks: ruff, clang-format, white space'
	@echo 'make types           mypy'
	@echo 'make format          apply ruff and clang-format'
	@echo 'make test            all tests, on both OpenMMLab stacks'
	@echo 'make test-openmmlab  the tests that depend on the stack, on the releases of OpenMMLab'
	@echo 'make env             only create .venv and build the compiled operators'
	@echo 'Each creates the environment it needs first; CONTRIBUTING.md has measured times.'

env:
	@$(PYTHON) tools/setup_env.py --venv $(VENV) --stack onedl

env-openmmlab: env
	@$(PYTHON) tools/setup_env.py --venv $(VENV_OPENMMLAB) --stack openmmlab --torch-from $(VENV)

# As at a commit, but for mypy, which is "types".
lint: env
	SKIP=mypy PATH="$(abspath $(BIN)):$$PATH" pre-commit run --all-files --show-diff-on-failure

types: env
	$(BIN)/mypy

format: env
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(CXX_FILES) | xargs $(BIN)/clang-format -i

check: lint types
	$(RUN) -m pytest $(PARALLEL) -m 'not slow and not train'

test: env
	$(RUN) -m pytest $(PARALLEL)
	$(MAKE) test-openmmlab

# What depends on the stack. What does not: operators, layers, the backbones' numbers (each is built
# and run in all three toolboxes by tests/tools/test_registration.py), reading files, benchmarks.
STACK_TESTS = $(addprefix tests/,apis compat configs data_preprocessors \
	datasets/test_shapes_datasets.py engine tools test_imports.py test_main.py)
test-openmmlab: env-openmmlab
	$(VENV_OPENMMLAB)/bin/python -m pytest $(PARALLEL) -m 'not once' $(STACK_TESTS)

demo: CONFIG = configs/demo_mask_rcnn_l2vit_pico_shapes.py
demo-seg: CONFIG = configs/demo_upernet_l2vit_pico_shapes.py
demo-long: CONFIG = configs/demo_long_mask_rcnn_l2vit_pico_shapes.py
demo demo-seg: DATA = --root data/shapes
demo-long: DATA = --root data/shapes_seed1 --seed 1 --num-train 8000
demo demo-seg demo-long: WORK = work_dirs/$@
demo demo-seg demo-long: env
	$(RUN) tools/generate_shapes.py $(DATA)
	$(RUN) tools/train.py $(CONFIG) --work-dir $(WORK)
	$(RUN) tools/test.py $(CONFIG) "$$(cat $(WORK)/last_checkpoint)" \
		--work-dir $(WORK)/test --show-dir $(WORK)/pictures
	$(RUN) tools/tile_pictures.py $(WORK)/pictures $(WORK)/$@.jpg \
		--num 9 --scale 2 --title 'ground truth | prediction'
