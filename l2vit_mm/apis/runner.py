"""Builds runners from configs, and summarizes their metrics in one line."""

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

# Label and format of the main metrics, by their name without its prefix.
_HEADLINES = {
    'bbox_mAP': ('box mAP', '.3f'),
    'segm_mAP': ('mask mAP', '.3f'),
    'mIoU': ('mIoU (%)', '.2f'),
    'top1': ('top-1 accuracy (%)', '.2f'),
}


def build_runner(cfg: Config) -> Runner:
    """Builds the mmengine runner of a config.

    Raises:
        UsageError: if it needs several processes and there is one, if the launcher needs a GPU and
            there is none, or if the parts of the model don't fit together.
    """
    if cfg.launcher == 'none' and (cfg.get('strategy') or {}).get('type') == 'ShardedStrategy':
        raise UsageError(
            'strategy: ShardedStrategy shards the model across several processes; '
            'start them with tools/dist_train.sh or tools/dist_test.sh'
        )
    if cfg.launcher != 'none' and get_device() == 'cpu':
        if cfg.launcher != 'pytorch':
            raise UsageError(
                f'--launcher must be pytorch on a machine without a GPU, got {cfg.launcher}'
            )
        init_cpu_group(cfg)
    runner = RUNNERS.build(cfg) if 'runner_type' in cfg else Runner.from_cfg(cfg)
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    if isinstance(model, nn.Module):  # FlexibleRunner builds it later
        check_channels(model)
    return runner


def summarize(metrics: dict) -> str:
    """Formats the main metrics in one line, e.g. ``box mAP 0.437  mask mAP 0.396``."""
    known = [
        (*_HEADLINES[name.split('/')[-1]], value)
        for name, value in metrics.items()
        if name.split('/')[-1] in _HEADLINES
    ]
    known = known or [(name, '', value) for name, value in metrics.items()]
    return '  '.join(f'{label} {value:{spec}}' for label, spec, value in known) or (
        'no metrics: the model predicted nothing, or the config has no evaluator with metrics'
    )


def check_channels(model: nn.Module) -> None:
    """Checks ``in_channels`` of the neck, or of a segmentor's heads, against the backbone's maps.

    Args:
        model (nn.Module): a detector, segmentor or classifier; it is checked if its backbone is a
            :class:`~l2vit_mm.backbones.BaseBackbone`.

    Raises:
        UsageError: if they differ; it names the expected ones.
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
                f'{", ".join(map(str, backbone.out_strides))}'
            )
