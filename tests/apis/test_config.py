"""Parts of l2vit_mm.apis that need no run."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import OPTIM_WRAPPERS

from l2vit_mm.apis import config
from l2vit_mm.apis.errors import UsageError
from l2vit_mm.apis.runner import build_runner, check_channels, summarize
from l2vit_mm.backbones import L2ViT


def test_cpu_wrapper_runs_forward_in_bfloat16_and_keeps_float32_weights():
    model = torch.nn.Linear(4, 4)
    before = model.weight.detach().clone()
    wrapper = OPTIM_WRAPPERS.build(
        dict(type='CpuAmpOptimWrapper', optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    )
    with wrapper.optim_context(model):
        out = model(torch.ones(2, 4))
    assert out.dtype == torch.bfloat16
    wrapper.update_params(out.float().square().mean())
    assert model.weight.dtype == torch.float32 and not torch.equal(model.weight, before)


def test_enable_amp_chooses_by_device(monkeypatch):
    cfg = Config(dict(optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=1.0))))
    monkeypatch.setattr(config, 'get_device', lambda: 'cuda')
    config.enable_amp(cfg)
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper'
    assert cfg.optim_wrapper.loss_scale == 'dynamic'
    # The same config on a machine without a GPU: the other wrapper knows no loss scale.
    monkeypatch.setattr(config, 'get_device', lambda: 'cpu')
    config.enable_amp(cfg)
    assert cfg.optim_wrapper.type == 'CpuAmpOptimWrapper'
    assert 'loss_scale' not in cfg.optim_wrapper


def test_summary_names_what_people_compare():
    metrics = {'coco/bbox_mAP': 0.1234, 'coco/bbox_mAP_50': 0.3, 'coco/segm_mAP': 0.1}
    assert summarize(metrics) == 'box mAP 0.123  mask mAP 0.100'
    assert summarize({'aAcc': 1.0, 'mIoU': 41.206}) == 'mIoU (%) 41.21'
    assert summarize({'mine/score': 2}) == 'mine/score 2'
    assert 'predicted nothing' in summarize({})


def test_sharding_without_processes_is_one_line():
    cfg = Config(dict(launcher='none', strategy=dict(type='ShardedStrategy')))
    with pytest.raises(UsageError, match='tools/dist_train.sh'):
        build_runner(cfg)


def test_weights_for_the_backbone():
    cfg = Config(dict(default_scope='mmdet', model=dict(backbone=dict(type='L2ViT'))))
    assert config.starts_from_scratch(cfg)
    config.set_backbone_checkpoint(cfg, 'file.pth')
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint='file.pth')
    assert not config.starts_from_scratch(cfg)
    whole = Config(
        dict(
            default_scope='mmdet', model=dict(backbone=dict(type='L2ViT')), load_from='detector.pth'
        )
    )
    assert not config.starts_from_scratch(whole)
    classifier = Config(dict(default_scope='mmpretrain', model=dict(backbone=dict(type='L2ViT'))))
    assert not config.starts_from_scratch(classifier)
    with pytest.raises(UsageError, match='--backbone-checkpoint: the config has no model.backbone'):
        config.set_backbone_checkpoint(Config(dict(model=dict())), 'file.pth')


def test_channels_of_neck_and_heads():
    backbone = L2ViT('pico', out_indices=(1, 3))

    def model(**parts):
        return SimpleNamespace(
            backbone=backbone,
            **{name: SimpleNamespace(**attributes) for name, attributes in parts.items()},
        )

    for parts in (
        dict(neck=dict(in_channels=[64, 192])),
        dict(neck=dict(in_channels=192)),
        dict(neck=dict()),
        dict(decode_head=dict(in_channels=(64, 192), in_index=(0, 1))),
        dict(decode_head=dict(in_channels=64, in_index=0)),
        dict(neck=dict(in_channels=(64, 192)), decode_head=dict(in_channels=256)),
    ):
        check_channels(model(**parts))
    for parts, message in [
        (
            dict(neck=dict(in_channels=[64, 128])),
            r'model.neck.in_channels must be \[64, 192\], got \[64, 128\]: L2ViT with '
            r'out_indices=\(1, 3\) returns 2 maps with 64, 192 channels, strides 8, 32',
        ),
        (dict(neck=dict(in_channels=[64, 192, 1])), r'must be \[64, 192\], got'),
        (
            dict(decode_head=dict(in_channels=[64, 128], in_index=[0, 1])),
            r'model.decode_head.in_channels must be \[64, 192\]',
        ),
        (
            dict(
                decode_head=dict(in_channels=[64, 192], in_index=[0, 1]),
                auxiliary_head=dict(in_channels=64, in_index=1),
            ),
            'model.auxiliary_head.in_channels must be 192, got 64',
        ),
    ]:
        with pytest.raises(UsageError, match=message):
            check_channels(model(**parts))
