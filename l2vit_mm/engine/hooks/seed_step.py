"""Training steps with reproducible random numbers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from l2vit_mm.datasets.seeded import mixed_seed

if TYPE_CHECKING:
    from mmengine.runner import Runner


@HOOKS.register_module()
class SeedStepHook(Hook):
    """Seeds each training step with the seed of the run, the iteration and the process rank."""

    priority = 'VERY_HIGH'

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: object = None) -> None:
        """Seeds ``random``, NumPy and torch (all devices)."""
        seed = mixed_seed(runner.seed, runner.iter, get_rank())
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
