"""The backbones by name, an architecture each."""
import os

from l2vit_mm.backbones.base import HierarchicalBackbone
from l2vit_mm.backbones.flatten_cswin import FLattenCSWin
from l2vit_mm.backbones.flatten_deit import FLattenDeiT
from l2vit_mm.backbones.flatten_pvt import FLattenPVT, FLattenPVTv2
from l2vit_mm.backbones.flatten_swin import FLattenSwin
from l2vit_mm.backbones.l2vit import L2ViT

MODELS = {
    f'{prefix}-{arch}': (family, arch)
    for prefix, family in {
        'l2vit': L2ViT, 'flatten-pvt': FLattenPVT, 'flatten-pvt-v2': FLattenPVTv2,
        'flatten-swin': FLattenSwin, 'flatten-cswin': FLattenCSWin, 'flatten-deit': FLattenDeiT
    }.items() for arch in family.arch_zoo
}


def list_models() -> list[str]:
    """The names that :func:`load_backbone` knows: a family's and an architecture's, as in
    'l2vit-tiny' and 'flatten-swin-base-384'."""
    return list(MODELS)


def load_backbone(file: str | os.PathLike, arch: str, **kwargs) -> HierarchicalBackbone:
    """A backbone with the weights of a file.

    Args:
        file (str | os.PathLike): a published file, one made from it here, or the checkpoint of a
            detector, segmenter or classifier with such a backbone.
        arch (str): one of :func:`list_models`.
        kwargs: arguments of the backbone's class.

    Returns:
        HierarchicalBackbone: in training mode, as modules are when they are made.

    Raises:
        ValueError: if there is no such ``arch``.
        FileNotFoundError: if there is no such file.
        RuntimeError: if the file doesn't fit; see
            :meth:`~l2vit_mm.backbones.base.HierarchicalBackbone.init_weights`.
        pickle.UnpicklingError: if it is damaged, or holds more than weights.
    """
    if arch not in MODELS:
        raise ValueError(f'arch is {arch!r}; accepted are {", ".join(MODELS)}')
    family, name = MODELS[arch]
    model = family(name, init_cfg=dict(type='Pretrained', checkpoint=os.fspath(file)), **kwargs)
    model.init_weights()
    return model
