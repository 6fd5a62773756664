"""Several processes without a GPU: mmengine's launcher asks for one."""
import torch
from mmengine.config import Config, ConfigDict


def init_cpu_group(cfg: Config) -> None:
    """Joins the processes that torchrun has started over gloo, and has their model wrapped for it.

    mmengine's own ``init_dist`` calls ``torch.cuda.set_device``, and its runner gives DDP the GPU's
    number. A runner that finds a process group makes none; a ``model_wrapper_cfg`` that says
    ``device_ids=None`` is left that.

    Args:
        cfg (Config): of the run; ``model_wrapper_cfg`` is changed.
    """
    wrapper = cfg.setdefault('model_wrapper_cfg', ConfigDict(
        type='MMDistributedDataParallel', broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False)))
    wrapper.setdefault('device_ids', None)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group('gloo')
