"""Hooks of mmengine's runner."""

from l2vit_mm.engine.hooks.seed_step import SeedStepHook
from l2vit_mm.engine.hooks.strict_load import StrictLoadHook

__all__ = ['SeedStepHook', 'StrictLoadHook']
