"""Mixed precision on the CPU, where mmengine's AmpOptimWrapper can't be built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn


@OPTIM_WRAPPERS.register_module()
class CpuAmpOptimWrapper(OptimWrapper):
    """Runs the forward pass under bfloat16 autocast on the CPU.

    bfloat16 has float32's range, so the loss is not scaled. Takes the arguments of
    ``mmengine.optim.OptimWrapper``.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """As mmengine's, with autocast."""
        with super().optim_context(model), torch.autocast('cpu', dtype=torch.bfloat16):
            yield
