"""From a config to a runner, and from its metrics to one line."""

from __future__ import annotations

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.model import is_model_wrapper
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch import nn

from l2vit_mm.apis.errors import UsageError
from l2vit_mm.backbones import BaseBackbone
from l2vit_mm.compat.distributed import init_cpu_group

# What people compare, by the metric's name without its prefix: a label and a format.
_HEADLINES = {
    'bbox_mAP': ('box mAP', '.3f'),
    'segm_mAP': ('mask mAP', '.3f'),
    'mIoU': ('mIoU (%)', '.2f'),
    'top1': ('top-1 accuracy (%)', '.2f'),
}


def build_runner(cfg: Config) -> Runner:
    """Builds the mmengine runner that the config asks for.

    Raises:
        UsageError: if processes are missing for it, or the model's parts don't fit together.
    """
    if cfg.launcher == 'none' and (cfg.get('strategy') or {}).get('type') == 'ShardedStrategy':
        raise UsageError('strategy: ShardedStrategy shares the model out among processes, which '
                         'tools/dist_train.sh and tools/dist_test.sh start')
    if cfg.launcher != 'none' and get_device() == 'cpu':
        if cfg.launcher != 'pytorch':
            raise UsageError(f'--launcher: {cfg.launcher} needs a GPU; without one: pytorch')
        init_cpu_group(cfg)
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    if isinstance(model, nn.Module):  # FlexibleRunner builds it later
        check_channels(model)
    return runner


def summarize(metrics: dict) -> str:
    """Puts the figures that people compare on one line, e.g. ``box mAP 0.437  mask mAP 0.396``."""
    known = [(*_HEADLINES[name.split('/')[-1]], value) for name, value in metrics.items()
             if name.split('/')[-1] in _HEADLINES]
    known = known or [(name, '', value) for name, value in metrics.items()]
    return '  '.join(f'{label} {value:{spec}}' for label, spec, value in known) or (
        'no metric: the model predicted nothing, or the config has no evaluator that scores')


def check_channels(model: nn.Module) -> None:
    """Checks what takes the maps of one of our backbones: a neck, or a segmentor's head.

    Args:
        model (nn.Module): detector, segmentor or classifier.

    Raises:
        UsageError: if its ``in_channels`` aren't those of the maps; it gives the right ones.
    """
    backbone = getattr(model, 'backbone', None)
    if not isinstance(backbone, BaseBackbone):
        return
    for name in ('neck', 'decode_head', 'auxiliary_head'):
        taker = getattr(model, name, None)
        found = getattr(taker, 'in_channels', None)
        if found is None or (name != 'neck' and getattr(model, 'neck', None) is not None):
            continue
        channels = backbone.out_channels
        expected: int | list[int]
        if isinstance(found, int):
            index = getattr(taker, 'in_index', -1)
            expected = channels[index if isinstance(index, int) and index < len(channels) else -1]
        else:
            indices = getattr(taker, 'in_index', range(len(channels)))
            expected = [channels[index] for index in indices if index < len(channels)]
            found = list(found)
        if found != expected:
            raise UsageError(
                f'model.{name}.in_channels must be {expected}, got {found}: '
                f'{type(backbone).__name__} with out_indices={backbone.out_indices} returns '
                f'{len(channels)} maps with {", ".join(map(str, channels))} channels, strides '
                f'{", ".join(map(str, backbone.out_strides))}')
