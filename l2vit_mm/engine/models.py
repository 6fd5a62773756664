"""Models by name, without a config."""
import os

from mmengine.model import BaseModule
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner.checkpoint import _load_checkpoint, _load_checkpoint_to_model

from l2vit_mm.backbones import zoo
from l2vit_mm.engine.strict_load import fit_checkpoint


def get_model(name: str, task: str = 'backbone', pretrained: str | os.PathLike | None = None,
              num_classes: int = 1000, **kwargs) -> BaseModule:
    """A backbone, or mmpretrain's classifier on it. (Detectors and segmenters have configs.)

    Args:
        name (str): one of :func:`~l2vit_mm.list_models`.
        task (str): 'backbone', or 'classifier', which needs mmpretrain: called with images
            (B, 3, h, w), normalised as for training, it gives logits (B, num_classes).
        pretrained (str | os.PathLike, optional): a published file, or one that was trained here.
        num_classes (int): of the classifier.
        kwargs: arguments of the backbone's class.

    Returns:
        BaseModule: in training mode, as modules are when they are made.

    Raises:
        ValueError: for another ``name`` or ``task``.
        FileNotFoundError: if there is no such file.
        RuntimeError: if the file doesn't fit.
        pickle.UnpicklingError: if it is damaged, or holds more than weights.

    Example:
        >>> import torch, l2vit_mm
        >>> l2vit_mm.get_model('l2vit-tiny', task='classifier')(torch.rand(2, 3, 224, 224)).shape
        torch.Size([2, 1000])
    """
    if name not in zoo.MODELS:
        raise ValueError(f'name is {name!r}; accepted are {", ".join(zoo.MODELS)}')
    if task not in ('backbone', 'classifier'):
        raise ValueError(f"task is {task!r}; accepted are 'backbone' and 'classifier'")
    family, arch = zoo.MODELS[name]
    if task == 'backbone':
        return (family(arch, **kwargs) if pretrained is None else
                zoo.load_backbone(pretrained, name, **kwargs))
    # FLattenDeiT's has one number for all its stages, which are its blocks.
    channels, depths = (family.arch_zoo[arch].get(key) for key in ('channels', 'depths'))
    last = len(depths) - 1 if depths else family.arch_zoo[arch]['depth'] - 1
    cfg = dict(
        type='ImageClassifier',
        backbone=dict(type=family.__name__, arch=arch, **{
            'out_indices': (last, ), **kwargs}),
        neck=dict(type='GlobalAveragePooling'),
        head=dict(type='LinearClsHead', num_classes=num_classes,
                  in_channels=channels[-1] if depths else channels))
    with DefaultScope.overwrite_default_scope('mmpretrain'):  # whatever a Runner has set
        model = MODELS.build(cfg)
    if pretrained is None:
        model.init_weights()
    else:
        checkpoint = _load_checkpoint(os.fspath(pretrained), map_location='cpu')
        fit_checkpoint(model, checkpoint)
        _load_checkpoint_to_model(model, checkpoint, strict=True)
    return model
