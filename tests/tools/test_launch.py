"""Parts of l2vit_mm.engine.launch that need no run."""
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import OPTIM_WRAPPERS

from l2vit_mm.engine import launch


def test_cpu_wrapper_runs_forward_in_bfloat16_and_keeps_float32_weights():
    model = torch.nn.Linear(4, 4)
    before = model.weight.detach().clone()
    wrapper = OPTIM_WRAPPERS.build(
        dict(type='CpuAmpOptimWrapper', optimizer=torch.optim.SGD(model.parameters(), lr=0.1)))
    with wrapper.optim_context(model):
        out = model(torch.ones(2, 4))
    assert out.dtype == torch.bfloat16
    wrapper.update_params(out.float().square().mean())
    assert model.weight.dtype == torch.float32 and not torch.equal(model.weight, before)


def test_enable_amp_chooses_by_device(monkeypatch):
    cfg = Config(dict(optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=1.))))
    monkeypatch.setattr(launch, 'get_device', lambda: 'cuda')
    launch.enable_amp(cfg)
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper'
    assert cfg.optim_wrapper.loss_scale == 'dynamic'
    # The same config on a machine without a GPU: the other wrapper knows no loss scale.
    monkeypatch.setattr(launch, 'get_device', lambda: 'cpu')
    launch.enable_amp(cfg)
    assert cfg.optim_wrapper.type == 'CpuAmpOptimWrapper'
    assert 'loss_scale' not in cfg.optim_wrapper


def test_summary_names_what_people_compare():
    metrics = {'coco/bbox_mAP': 0.1234, 'coco/bbox_mAP_50': 0.3, 'coco/segm_mAP': 0.1}
    assert launch.summarize(metrics) == 'box mAP 0.123  mask mAP 0.100'
    assert launch.summarize({'aAcc': 1., 'mIoU': 41.206}) == 'mIoU (%) 41.21'
    assert launch.summarize({'mine/score': 2}) == 'mine/score 2'
    assert 'predicted nothing' in launch.summarize({})


def test_sharding_without_processes_is_one_line():
    cfg = Config(dict(launcher='none', strategy=dict(type='ShardedStrategy')))
    with pytest.raises(launch.UsageError, match='tools/dist_train.sh'):
        launch.build_runner(cfg)
