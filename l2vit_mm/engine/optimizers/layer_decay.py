"""Layer-wise learning rates, and which parameters have no weight decay."""

from __future__ import annotations

import re
from typing import Any

from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from l2vit_mm.layers import ResizedTable


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """Layer-wise learning rate decay (ELECTRA, arXiv 2003.10555; BEiT, arXiv 2106.08254)::

        lr = optimizer.lr * lr_mult * layer_decay_rate ** (last depth - depth)

    For detectors, segmentors and classifiers. The backbone's ``get_layer_depth(param_name,
    'backbone.')`` gives the depth: for the backbones here 0 for the stem, then one per block; necks
    and heads have the last depth. mmpretrain's transformers have that method too.

    Norms, biases and all other parameters of one dimension (``scale``, ``temperature``), position
    embeddings and relative position bias tables get no weight decay. The groups are logged as a
    table.

    Args:
        optim_wrapper_cfg (dict): as in mmengine; the optimizer needs ``lr`` and ``weight_decay``.
        paramwise_cfg (dict, optional): ``layer_decay_rate`` (0 < rate <= 1; default 1: the same
            learning rate for all), and the settings of mmengine's
            ``DefaultOptimWrapperConstructor``. ``norm_decay_mult``, ``bias_decay_mult`` and
            ``flat_decay_mult`` default to 0 here. ``custom_keys`` override these, as in mmengine,
            and are combined with the factor of the layer.

    Raises:
        ValueError: if ``layer_decay_rate`` is out of range, or ``lr`` or ``weight_decay`` of the
            optimizer is missing.
        TypeError: if the backbone has no ``get_layer_depth``; raised when called.

    Example:
        >>> optim_wrapper = dict(
        ...     type='OptimWrapper', constructor='LayerDecayOptimWrapperConstructor',
        ...     optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
        ...     paramwise_cfg=dict(layer_decay_rate=0.9))
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        cfg: dict[str, Any] = dict(norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0)
        cfg.update(paramwise_cfg or {})
        self.rate: float = cfg.pop('layer_decay_rate', 1.0)
        if not 0.0 < self.rate <= 1.0:
            raise ValueError(f'paramwise_cfg.layer_decay_rate must be in (0, 1], got {self.rate!r}')
        for key in ('lr', 'weight_decay'):
            if optim_wrapper_cfg['optimizer'].get(key) is None:
                raise ValueError(
                    f'optim_wrapper.optimizer.{key} must be a number, as it is set by '
                    'group, got none'
                )
        super().__init__(optim_wrapper_cfg, cfg)

    def add_params(
        self,
        params: list[dict],
        module: nn.Module,
        prefix: str = '',
        is_dcn_module: int | float | None = None,
    ) -> None:
        """As mmengine's; then groups of the same depth and settings are merged."""
        super().add_params(params, module, prefix, is_dcn_module)
        if prefix:  # a recursive call of mmengine's, for a child
            return
        backbone: Any = getattr(module, 'backbone', None)
        if self.rate != 1.0 and not hasattr(backbone, 'get_layer_depth'):
            raise TypeError(
                'with layer_decay_rate, the backbone must have get_layer_depth, got a '
                f'{type(backbone).__name__} in {type(module).__name__}'
            )
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        tables = {id(part.table) for part in module.modules() if isinstance(part, ResizedTable)}
        custom_keys = self.paramwise_cfg.get('custom_keys', {})
        merged: dict[Any, tuple[int, dict, dict]] = {}
        for group in params:
            (parameter,) = group.pop('params')
            name = names[id(parameter)]
            depth, factor = 0, 1.0
            if self.rate != 1.0:
                depth, depths = backbone.get_layer_depth(name, 'backbone.')
                factor = self.rate ** (depths - 1 - depth)
            base_lr: Any = group.get('lr', self.base_lr)
            group['lr'] = base_lr * factor
            group.setdefault('weight_decay', self.base_wd)
            if id(parameter) in tables and not any(key in name for key in custom_keys):
                group['weight_decay'] = 0.0
            key = depth, *sorted(group.items())
            merged.setdefault(key, (depth, group, {}))[2][name] = parameter
        rows = sorted(merged.values(), key=lambda row: (row[0], row[1]['weight_decay']))
        params[:] = [dict(group, params=list(named.values())) for _, group, named in rows]
        print_log('Parameters of the optimizer:\n' + _table(rows), logger='current')


def _part_of(name: str) -> str:
    """The stage and block of a backbone, or the other module, that a parameter belongs to."""
    match = re.match(r'(?:backbone\.)?\w+(?:\.\d+)*', name)
    return match[0] if match else name


def _table(rows: list[tuple[int, dict, dict]]) -> str:
    """One line per group: depth, settings, numbers of tensors and values, and their modules."""
    lines = [('depth', 'lr', 'weight decay', 'tensors', 'values', 'of')]
    for depth, group, named in rows:
        parts = dict.fromkeys(_part_of(name) for name in named)
        lines.append(
            (
                str(depth),
                f'{group["lr"]:.4g}',
                f'{group["weight_decay"]:g}',
                str(len(named)),
                str(sum(p.numel() for p in named.values())),
                ', '.join(parts),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return '\n'.join(
        '  '.join(map(str.rjust, line[:-1], widths)) + '  ' + line[-1] for line in lines
    )
