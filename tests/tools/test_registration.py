"""One registration serves every toolbox."""

import importlib

import pytest
import torch

import l2vit_mm  # noqa: F401
from l2vit_mm.registry import registered_backbones

BACKBONES = registered_backbones()


@pytest.mark.parametrize('toolbox', ['mmdet', 'mmseg', 'mmpretrain'])
@pytest.mark.parametrize('name', BACKBONES)
def test_same_dict_builds_in_every_scope(toolbox, name):
    registry = importlib.import_module(f'{toolbox}.registry').MODELS
    cls = BACKBONES[name]
    backbone = registry.build(dict(type=cls.__name__, arch=cls.test_arch))
    assert type(backbone) is cls
    maps = backbone.eval()(torch.zeros(1, 3, 40, 72))
    assert [tuple(m.shape[1:]) for m in maps] == [
        (channels, -(-40 // stride), -(-72 // stride))
        for channels, stride in zip(backbone.out_channels, backbone.out_strides, strict=True)
    ]
