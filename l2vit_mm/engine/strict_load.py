"""Whole models from files: what fits is loaded, the published names included; what doesn't is an
error."""
from collections import OrderedDict
from collections.abc import Sequence

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from l2vit_mm.backbones.base import HierarchicalBackbone, families
from l2vit_mm.backbones.loading import check_and_log, looks_like, misfits, split, unwrap


@HOOKS.register_module()
class StrictLoadHook(Hook):
    """Checks what ``load_from``, ``--resume`` and tools/test.py load; mmengine would only warn.

    The checkpoint of a detector, segmenter or classifier is one that was written here, or one whose
    backbone has the published names. A classifier also takes a published file as it is: a state
    dict, or what holds one as ``model``, with the backbone's names without prefix, ``head.weight``
    and ``head.bias``. What is resized, dropped, left as initialised or not finite is logged. A
    model on another backbone than ours is checked alike; one that is sharded (FSDP) isn't.

    Args:
        initial (Sequence[str]): beginnings of names that keep what they are initialised with, in a
            run that starts from another one's weights: ``['roi_head.bbox_head.fc_']``, say, for
            other classes.

    Raises:
        RuntimeError: if the file doesn't fit the model; it lists what is missing, unknown or of
            another shape, and says which architecture the file looks like.
    """

    priority = 'VERY_HIGH'  # before hooks that look for checkpoint['state_dict']

    def __init__(self, initial: Sequence[str] = ()) -> None:
        if isinstance(initial, str):
            raise TypeError(f'initial is {initial!r}; accepted is a sequence of strings')
        self.initial = tuple(initial)

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        """Puts the model's own names into ``checkpoint['state_dict']``."""
        if isinstance(runner.model, FullyShardedDataParallel):
            return
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        fit_checkpoint(model, checkpoint, () if runner._resume else self.initial)


def fit_checkpoint(model: nn.Module, checkpoint: dict, initial: tuple[str, ...] = ()) -> None:
    """Puts the names of a detector, segmenter or classifier into ``checkpoint['state_dict']``.

    Arguments, errors: see :class:`StrictLoadHook`.
    """
    state = unwrap(checkpoint)
    own = model.state_dict()
    loaded, notes, hint = OrderedDict(state), {'left as initialised': []}, ''
    backbone = getattr(model, 'backbone', None)
    if isinstance(backbone, HierarchicalBackbone):
        part, rest = split(state)
        adapted, notes = backbone.adapt(part)
        loaded = OrderedDict(rest)
        loaded.update((f'backbone.{name}', value) for name, value in adapted.items())
        guess = looks_like(part, families()) if misfits(adapted, backbone.state_dict()) else ''
        hint = f'its backbone looks like {guess}; ' if guess else ''
        if not rest.keys() & own.keys() and own.keys() != loaded.keys():
            hint += 'a backbone alone is for model.backbone.init_cfg; '
    norms = {f'backbone.{name}' for name in notes['left as initialised']}
    kept = [name for name in own if name.startswith(initial) or name in norms]
    loaded.update((name, own[name]) for name in kept)
    notes['left as initialised'] = kept
    check_and_log(type(model).__name__, loaded, own, notes, hint)
    if hasattr(checkpoint.get('state_dict'), '_metadata'):  # versions of modules
        loaded._metadata = checkpoint['state_dict']._metadata
    checkpoint['state_dict'] = loaded
