"""Whole models from files: what fits is loaded, the published names included; what doesn't is an
error."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from l2vit_mm.backbones.base import BaseBackbone
from l2vit_mm.checkpoint.load import adapt, looks_like
from l2vit_mm.checkpoint.report import LoadReport
from l2vit_mm.checkpoint.state import split, unwrap

if TYPE_CHECKING:
    from mmengine.runner import Runner


@HOOKS.register_module()
class StrictLoadHook(Hook):
    """Checks what ``load_from``, ``--resume`` and tools/test.py load; mmengine would only warn.

    The checkpoint of a detector, segmentor or classifier is one that was written here, or one whose
    backbone has the published names. A classifier also takes a published file as it is: a state
    dict, or what holds one as ``model``, with the backbone's names without prefix, ``head.weight``
    and ``head.bias``. What is resized, skipped, left as initialized or not finite is logged. A
    model on another backbone than ours is checked alike; one that is sharded (FSDP) isn't.

    Args:
        initial (Sequence[str]): beginnings of names that keep what they are initialized with, in a
            run that starts from another one's weights: ``['roi_head.bbox_head.fc_']``, for example,
            for other classes.

    Raises:
        CheckpointError: if the file doesn't fit the model; it lists what is missing, unexpected or
            of another shape, and says which architecture the file looks like.
    """

    priority = 'VERY_HIGH'  # before hooks that look for checkpoint['state_dict']

    def __init__(self, initial: Sequence[str] = ()) -> None:
        if isinstance(initial, str):
            raise TypeError(f'initial must be a sequence of strings, got {initial!r}')
        self.initial = tuple(initial)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Puts the model's own names into ``checkpoint['state_dict']``."""
        if isinstance(runner.model, FullyShardedDataParallel):
            return
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        fit_checkpoint(model, checkpoint, () if runner._resume else self.initial)


def fit_checkpoint(model: nn.Module, checkpoint: dict[str, Any],
                   initial: tuple[str, ...] = ()) -> None:
    """Puts the names of a detector, segmentor or classifier into ``checkpoint['state_dict']``.

    Args:
        model (nn.Module): the detector, segmentor or classifier.
        checkpoint (dict): what was loaded; changed.
        initial (tuple[str, ...]): see :class:`StrictLoadHook`.

    Raises:
        CheckpointError: see :class:`StrictLoadHook`.
    """
    state = unwrap(checkpoint)
    own = model.state_dict()
    loaded: dict[str, Any] = OrderedDict(state)
    report, hint = LoadReport(), ''
    backbone = getattr(model, 'backbone', None)
    if isinstance(backbone, BaseBackbone):
        part, rest = split(state)
        adapted, report = adapt(backbone, part)
        loaded = OrderedDict(rest)
        loaded.update((f'backbone.{name}', value) for name, value in adapted.items())
        guess = looks_like(part) if report.misfit else ''
        hint = f'its backbone looks like {guess}; ' if guess else ''
        if not rest.keys() & own.keys() and own.keys() != loaded.keys():
            hint += 'a backbone alone is for model.backbone.init_cfg; '
    norms = {f'backbone.{name}' for name in report.initialized}
    report.initialized = [name for name in own if name.startswith(initial) or name in norms]
    loaded.update((name, own[name]) for name in report.initialized)
    report.compare(loaded, own).check_and_log(type(model).__name__, hint)
    if hasattr(checkpoint.get('state_dict'), '_metadata'):  # versions of modules
        loaded._metadata = checkpoint['state_dict']._metadata  # type: ignore[attr-defined]
    checkpoint['state_dict'] = loaded
