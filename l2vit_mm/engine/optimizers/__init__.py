"""Optimizer constructors and wrappers."""

from l2vit_mm.engine.optimizers.cpu_amp import CpuAmpOptimWrapper
from l2vit_mm.engine.optimizers.layer_decay import LayerDecayOptimWrapperConstructor

__all__ = ['CpuAmpOptimWrapper', 'LayerDecayOptimWrapperConstructor']
