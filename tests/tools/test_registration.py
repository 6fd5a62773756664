"""One registration serves every toolbox."""
import importlib

import pytest
import torch

import l2vit_mm  # noqa: F401
from l2vit_mm.backbones import L2ViT


@pytest.mark.parametrize('toolbox', ['mmdet', 'mmseg', 'mmpretrain'])
def test_same_dict_builds_in_every_scope(toolbox):
    registry = importlib.import_module(f'{toolbox}.registry').MODELS
    backbone = registry.build(dict(type='L2ViT', arch='pico'))
    assert type(backbone) is L2ViT
    maps = backbone.eval()(torch.zeros(1, 3, 40, 72))
    assert [tuple(m.shape[2:]) for m in maps] == [(10, 18), (5, 9), (3, 5), (2, 3)]
