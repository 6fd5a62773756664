"""FSDP with mmengine's FlexibleRunner: what is a unit, and the strategy."""

from __future__ import annotations

from typing import Any

from mmengine._strategy import FSDPStrategy
from mmengine.device import get_device
from mmengine.optim import OptimWrapper
from mmengine.registry import FUNCTIONS, STRATEGIES
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from l2vit_mm.registry import registered_backbones


@FUNCTIONS.register_module()
def backbone_blocks(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """FSDP's ``auto_wrap_policy``: each block of our backbones is a unit, and what remains of the
    model is one more."""
    blocks = {block for cls in registered_backbones().values() for block in cls.block_types}
    return recurse or isinstance(module, tuple(blocks))


@STRATEGIES.register_module()
class ShardedStrategy(FSDPStrategy):
    """mmengine's ``FSDPStrategy``, whose training is that of one process with all the images.

    In mmengine's own (0.10.7 to 0.10.12)

    - resuming fails, as torch now takes the arguments of ``optim_state_dict_to_load`` in another
      order;
    - ``clip_grad`` clips by the norm of what a process has, not by that of all gradients;
    - the optimizer's constructor sees parameters as flat shards, so that ``flat_decay_mult``, for
      those of one dimension, is for all.

    Without a GPU the processes train on the CPU. Differences from one process remain: a parameter
    that the loss doesn't depend on has a gradient of zero, not none, so that weight decay reaches
    it; and BatchNorms, unless they are SyncBN, see a process's own images, and a checkpoint has
    the statistics of the first process. mmengine's ``EMAHook`` can't copy a sharded model.

    Args:
        model_wrapper (dict, optional): config of ``MMFullyShardedDataParallel``.
        kwargs: those of ``FSDPStrategy``.
    """

    def __init__(self, *, model_wrapper: dict | None = None, **kwargs: Any) -> None:
        model_wrapper = dict(model_wrapper or {})
        if get_device() == 'cpu':  # mmengine would say the number of a GPU
            model_wrapper.setdefault('device_id', 'cpu')
        super().__init__(model_wrapper=model_wrapper, **kwargs)

    def build_optim_wrapper(self, optim_wrapper: dict, model: nn.Module) -> OptimWrapper:
        """As mmengine's, of parameters in their own shapes, with gradients clipped as a whole."""
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            wrapper = super().build_optim_wrapper(optim_wrapper, model)
        if wrapper.clip_grad_kwargs and wrapper.clip_func is nn.utils.clip_grad_norm_:
            whole: Any = model
            wrapper.clip_func = lambda _, **settings: whole.clip_grad_norm_(**settings)
        return wrapper

    def load_optim_state_dict(self, state_dict: dict) -> None:
        """Shares out the optimizer's state of a checkpoint."""
        self.optim_wrapper.load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(
            self.model, self.optim_wrapper.optimizer, state_dict))
