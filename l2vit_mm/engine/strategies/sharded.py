"""FSDP with mmengine's FlexibleRunner: the wrapping policy and the strategy."""

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
    """FSDP's ``auto_wrap_policy``: each block of a registered backbone is a unit.

    The rest of the model is one more unit.

    Args:
        module (nn.Module): a module of the model.
        recurse (bool): whether FSDP asks if it should look at the module's children.
        nonwrapped_numel (int): not used.

    Returns:
        bool: True if FSDP should recurse or, with ``recurse`` False, wrap the module.
    """
    blocks = {block for cls in registered_backbones().values() for block in cls.block_types}
    return recurse or isinstance(module, tuple(blocks))


@STRATEGIES.register_module()
class ShardedStrategy(FSDPStrategy):
    """mmengine's ``FSDPStrategy``, corrected to train as one process with all images would.

    With mmengine's own (0.10.7 to 0.10.12)

    - resuming fails, because the arguments of torch's ``optim_state_dict_to_load`` have changed
      their order;
    - ``clip_grad`` clips by the norm of the gradients of one process, not of all gradients;
    - the optimizer's constructor gets flat shards, so that ``flat_decay_mult``, meant for
      parameters of one dimension, applies to all.

    Without a GPU the processes train on the CPU. Differences from one process remain. A parameter
    that the loss doesn't depend on has a gradient of zero, not None, so that it gets weight decay.
    BatchNorms, unless they are SyncBN, see the images of their process only, and a checkpoint has
    the statistics of the first process. mmengine's ``EMAHook`` can't copy a sharded model.

    Args:
        model_wrapper (dict, optional): config of ``MMFullyShardedDataParallel``.
        kwargs: arguments of ``FSDPStrategy``.
    """

    def __init__(self, *, model_wrapper: dict | None = None, **kwargs: Any) -> None:
        model_wrapper = dict(model_wrapper or {})
        if get_device() == 'cpu':  # mmengine would pass the number of a GPU
            model_wrapper.setdefault('device_id', 'cpu')
        super().__init__(model_wrapper=model_wrapper, **kwargs)

    def build_optim_wrapper(self, optim_wrapper: dict, model: nn.Module) -> OptimWrapper:
        """As mmengine's, with parameters in their original shapes; clips by the global norm."""
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            wrapper = super().build_optim_wrapper(optim_wrapper, model)
        if wrapper.clip_grad_kwargs and wrapper.clip_func is nn.utils.clip_grad_norm_:
            whole: Any = model
            wrapper.clip_func = lambda _, **settings: whole.clip_grad_norm_(**settings)
        return wrapper

    def load_optim_state_dict(self, state_dict: dict) -> None:
        """Loads the optimizer's state of a checkpoint, each process its shard."""
        self.optim_wrapper.load_state_dict(
            FullyShardedDataParallel.optim_state_dict_to_load(
                self.model, self.optim_wrapper.optimizer, state_dict
            )
        )
