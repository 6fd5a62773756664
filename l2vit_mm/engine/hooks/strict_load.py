"""Strict loading of whole models: a checkpoint that does not fit is an error."""

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
    """Checks what ``load_from``, ``--resume`` and tools/test.py load, where mmengine only warns.

    For a detector, segmentor or classifier the checkpoint must have our names, or the published
    names for the backbone. A classifier can also load a published file as it is: a state dict, at
    the top level or as ``model``, with ``head.weight``, ``head.bias`` and the names of the backbone
    without a prefix. The log says what is resized, skipped, left as initialized or not finite.
    Models with a backbone of another package are checked too; models under FSDP are not.

    Args:
        initial (Sequence[str]): prefixes of the names of parameters that keep their initial values
            when a run starts from the weights of another one, for example
            ``['roi_head.bbox_head.fc_']`` for other classes. Not used when resuming.

    Raises:
        TypeError: if ``initial`` is a string.
        CheckpointError: if the file doesn't fit the model, raised when it is loaded. It lists what
            is missing, unexpected or of another shape, and which architecture the file looks like.
    """

    priority = 'VERY_HIGH'  # before hooks that look for checkpoint['state_dict']

    def __init__(self, initial: Sequence[str] = ()) -> None:
        if isinstance(initial, str):
            raise TypeError(f'initial must be a sequence of strings, got {initial!r}')
        self.initial = tuple(initial)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Renames ``checkpoint['state_dict']`` to the names of the model."""
        if isinstance(runner.model, FullyShardedDataParallel):
            return
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        fit_checkpoint(model, checkpoint, () if runner._resume else self.initial)


def fit_checkpoint(
    model: nn.Module, checkpoint: dict[str, Any], initial: tuple[str, ...] = ()
) -> None:
    """Renames ``checkpoint['state_dict']`` to the names of a model, and checks that it fits.

    Args:
        model (nn.Module): a detector, segmentor or classifier.
        checkpoint (dict): the loaded checkpoint; changed in place.
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
            hint += 'a backbone without heads is loaded with model.backbone.init_cfg; '
    norms = {f'backbone.{name}' for name in report.initialized}
    report.initialized = [name for name in own if name.startswith(initial) or name in norms]
    loaded.update((name, own[name]) for name in report.initialized)
    report.compare(loaded, own).check_and_log(type(model).__name__, loaded, hint)
    if hasattr(checkpoint.get('state_dict'), '_metadata'):  # version numbers of modules
        loaded._metadata = checkpoint['state_dict']._metadata  # type: ignore[attr-defined]
    checkpoint['state_dict'] = loaded
