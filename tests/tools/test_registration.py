"""One registration serves every toolbox."""
import importlib

import pytest
import torch

import l2vit_mm  # noqa: F401
from l2vit_mm import backbones

ARCHES = dict(L2ViT='pico', FLattenPVTv2='b0')  # others: tiny


@pytest.mark.parametrize('toolbox', ['mmdet', 'mmseg', 'mmpretrain'])
@pytest.mark.parametrize('name', backbones.__all__)
def test_same_dict_builds_in_every_scope(toolbox, name):
    registry = importlib.import_module(f'{toolbox}.registry').MODELS
    backbone = registry.build(dict(type=name, arch=ARCHES.get(name, 'tiny')))
    assert type(backbone) is getattr(backbones, name)
    maps = backbone.eval()(torch.zeros(1, 3, 40, 72))
    sizes = [(10, 18), (5, 9), (3, 5), (2, 3)]
    assert [tuple(m.shape[2:]) for m in maps] == (sizes[2:3] if name == 'FLattenDeiT' else sizes)
