"""Models by name, without a config."""

from __future__ import annotations

import os
from typing import Any

import torch
from mmengine.model import BaseModule
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import CheckpointLoader

from l2vit_mm.checkpoint import load_backbone
from l2vit_mm.engine.hooks.strict_load import fit_checkpoint
from l2vit_mm.registry import find_model, list_models

__all__ = ['get_model', 'list_models', 'load_backbone']


def get_model(
    name: str,
    task: str = 'backbone',
    pretrained: str | os.PathLike | None = None,
    num_classes: int = 1000,
    **kwargs: Any,
) -> BaseModule:
    """Builds a backbone, or mmpretrain's classifier on it. (For other tasks there are configs.)

    Args:
        name (str): one of :func:`~l2vit_mm.list_models`.
        task (str): 'backbone', or 'classifier', which needs mmpretrain. A classifier takes images
            (B, 3, h, w), normalized as in training, and returns logits (B, num_classes).
        pretrained (str | os.PathLike, optional): a published file, or one trained here.
        num_classes (int): number of classes of the classifier.
        kwargs: arguments of the backbone's class. ``out_indices`` of a classifier defaults to the
            last stage.

    Returns:
        BaseModule: the model, in training mode.

    Raises:
        ValueError: if ``name`` or ``task`` is unknown.
        FileNotFoundError: if the file does not exist.
        CheckpointError: if the file does not fit the model.
        pickle.UnpicklingError: if the file is damaged, or holds more than weights.

    Example:
        >>> import torch, l2vit_mm
        >>> l2vit_mm.get_model('l2vit-tiny', task='classifier')(torch.rand(2, 3, 224, 224)).shape
        torch.Size([2, 1000])
    """
    cls, arch = find_model(name)
    if task not in ('backbone', 'classifier'):
        raise ValueError(f"task must be 'backbone' or 'classifier', got {task!r}")
    if task == 'backbone':
        return (
            cls(arch, **kwargs) if pretrained is None else load_backbone(pretrained, name, **kwargs)
        )
    with torch.device('meta'):  # for the number of stages and the channels of the last one
        whole = cls(arch)
    kwargs.setdefault('out_indices', (whole.num_stages - 1,))
    cfg = dict(
        type='ImageClassifier',
        backbone=dict(type=cls.__name__, arch=arch, **kwargs),
        neck=dict(type='GlobalAveragePooling'),
        head=dict(
            type='LinearClsHead', num_classes=num_classes, in_channels=whole.out_channels[-1]
        ),
    )
    with DefaultScope.overwrite_default_scope('mmpretrain'):  # whatever a Runner has set
        model = MODELS.build(cfg)
    if pretrained is None:
        model.init_weights()
    else:
        checkpoint = CheckpointLoader.load_checkpoint(os.fspath(pretrained), 'cpu')
        fit_checkpoint(model, checkpoint)
        model.load_state_dict(checkpoint['state_dict'])
    return model
