"""Several processes without a GPU: mmengine's launcher asks for one."""
import atexit
import gc

import torch
from mmengine.config import Config, ConfigDict


def init_cpu_group(cfg: Config) -> None:
    """Joins the processes that torchrun has started over gloo, and has their model wrapped for it.

    mmengine's own ``init_dist`` calls ``torch.cuda.set_device``, and its runner gives DDP the GPU's
    number. A runner that finds a process group makes none; a ``model_wrapper_cfg`` that says
    ``device_ids=None`` is left that. At the interpreter's end the group is left, and its threads
    are gone: one that still had a tensor to give back would abort the process ("terminate called
    without an active exception"), and torchrun would call a finished run a failure.

    Args:
        cfg (Config): of the run; ``model_wrapper_cfg`` is changed.
    """
    wrapper = cfg.setdefault('model_wrapper_cfg', ConfigDict(
        type='MMDistributedDataParallel', broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False)))
    wrapper.setdefault('device_ids', None)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group('gloo')
        atexit.register(_leave_group)


def _leave_group() -> None:
    gc.collect()  # a runner and its model are a cycle; the group's threads go with the last of them
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
