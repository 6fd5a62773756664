# Every target does its own set-up; docs/install.md says what that is.
# Another Python: make test PYTHON=python3.11. Other folders: VENV=..., VENV_OPENMMLAB=...
VENV ?= .venv
VENV_OPENMMLAB ?= .venv-openmmlab
# An environment that exists keeps its Python, unless another one is asked for.
PYTHON ?= $(if $(wildcard $(VENV)/bin/pip),$(VENV)/bin/python,python3)
RUN = $(VENV)/bin/python

.PHONY: help env env-openmmlab test test-openmmlab demo demo-seg demo-long

help:
	@echo 'make demo            train and test Mask R-CNN on generated images, about 15 minutes'
	@echo 'make demo-seg        the same with UPerNet'
	@echo 'make demo-long       Mask R-CNN from scratch, about an hour'
	@echo 'make test            run all tests, on both OpenMMLab stacks'
	@echo 'make test-openmmlab  run those that concern the stack, on the releases of OpenMMLab'
	@echo 'make env             only make .venv and the compiled operators'

env:
	@$(PYTHON) tools/setup_env.py --venv $(VENV) --stack onedl

env-openmmlab: env
	@$(PYTHON) tools/setup_env.py --venv $(VENV_OPENMMLAB) --stack openmmlab --torch-from $(VENV)

test: env
	$(RUN) -m pytest
	$(MAKE) test-openmmlab

# ops, layers and setup.py don't know the stack.
test-openmmlab: env-openmmlab
	$(VENV_OPENMMLAB)/bin/python -m pytest \
		--ignore=tests/ops --ignore=tests/layers --ignore=tests/test_build.py

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
