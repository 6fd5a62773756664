"""Distributed runs without a GPU, which mmengine's launcher requires."""

import atexit
import gc

import torch
from mmengine.config import Config, ConfigDict


def init_cpu_group(cfg: Config) -> None:
    """Joins the processes that torchrun has started over gloo, and sets the model's wrapper.

    mmengine's ``init_dist`` calls ``torch.cuda.set_device``, and its runner passes the number of a
    GPU to DDP. A runner uses an existing process group, and keeps ``device_ids=None`` of a
    ``model_wrapper_cfg``. When the interpreter exits, the group is destroyed and its threads end:
    a thread that still had to release a tensor would abort the process ("terminate called without
    an active exception"), and torchrun would report a finished run as failed.

    Args:
        cfg (Config): config of the run; ``model_wrapper_cfg`` is changed in place.
    """
    wrapper = cfg.setdefault(
        'model_wrapper_cfg',
        ConfigDict(
            type='MMDistributedDataParallel',
            broadcast_buffers=False,
            find_unused_parameters=cfg.get('find_unused_parameters', False),
        ),
    )
    wrapper.setdefault('device_ids', None)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group('gloo')
        atexit.register(_leave_group)


def _leave_group() -> None:
    gc.collect()  # runner and model form a cycle, which holds on to the group's threads
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
