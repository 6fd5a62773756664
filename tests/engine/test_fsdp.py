"""FSDP and SyncBN: several processes train as one does."""

import os
from argparse import Namespace
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from mmengine.config import Config
from mmengine.model import BaseModel, convert_sync_batchnorm
from mmengine.registry import MODEL_WRAPPERS, MODELS, RUNNERS, STRATEGIES, DefaultScope
from mmengine.runner import FlexibleRunner, Runner
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.modules.batchnorm import _BatchNorm

import l2vit_mm  # noqa: F401  (before any toolbox)
from l2vit_mm.apis.config import load_config
from l2vit_mm.backbones import L2ViT
from l2vit_mm.engine.strategies import ShardedStrategy
from l2vit_mm.registry import registered_backbones
from tests.backbones.checks import make

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device'),
]


def load(name):
    return Config.fromfile(str(CONFIGS / name))


@pytest.fixture
def group_of_one(request, tmp_path):
    """A process group of this process alone, over gloo or what the test asks for."""
    dist.init_process_group(
        getattr(request, 'param', 'gloo'),
        rank=0,
        world_size=1,
        init_method=f'file://{tmp_path}/group',
    )
    yield
    dist.destroy_process_group()


# --- FSDP ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings('ignore:FSDP')
@pytest.mark.parametrize('cls', registered_backbones().values(), ids=lambda cls: cls.__name__)
def test_units_are_the_blocks(cls, group_of_one):
    model = nn.ModuleDict(dict(backbone=make(cls), head=nn.Linear(2, 2)))
    blocks = [block for stage in model['backbone'].stages for block in stage]
    wrapper = load('mask_rcnn_l2vit_b_coco_fsdp.py').strategy.model_wrapper
    whole = MODEL_WRAPPERS.build(wrapper, default_args=dict(module=model, device_id='cpu'))
    units = [unit.module for unit in FullyShardedDataParallel.fsdp_modules(whole)]
    assert units[0] is model
    assert len(units) == len(blocks) + 1 and set(units[1:]) == set(blocks)


def test_config_is_the_ordinary_one_but_for_the_sharding(tmp_path):
    cfg = load('mask_rcnn_l2vit_b_coco_fsdp.py')
    strategy = cfg.pop('strategy')
    assert RUNNERS.get(cfg.pop('runner_type')) is FlexibleRunner
    assert cfg.custom_imports.imports.pop() == 'l2vit_mm.engine.strategies'
    assert cfg.to_dict() == load('mask_rcnn_l2vit_b_coco.py').to_dict()
    built = STRATEGIES.build(strategy, default_args=dict(work_dir=str(tmp_path)))
    assert type(built) is ShardedStrategy and built._is_full_state_dict()


class Regressor(BaseModel):
    """A number an image."""

    def __init__(self, norm_type, norm_eval):
        super().__init__()
        self.backbone = L2ViT(
            'pico',
            out_indices=(3,),
            frozen_stages=1,
            with_cp=True,
            norm_cfg=dict(type=norm_type),
            norm_eval=norm_eval,
        )
        self.head = nn.Linear(192, 1)

    def forward(self, inputs, target, mode):
        (feature_map,) = self.backbone(inputs)
        return dict(loss=(self.head(feature_map.mean((2, 3)))[:, 0] - target).square().mean())


def settings(work_dir, iterations, batch_size, *model):
    """Of a runner: all that the settings of an optimizer can ask of the sharding."""
    torch.manual_seed(0)
    images = torch.rand(16, 3, 64, 64), 9 * torch.rand(16)
    return dict(
        model=Regressor(*model),
        work_dir=str(work_dir),
        experiment_name=f'{work_dir}{iterations}',
        train_dataloader=dict(
            batch_size=batch_size,
            num_workers=0,
            collate_fn=dict(type='default_collate'),
            sampler=dict(type='DefaultSampler', shuffle=False),
            dataset=[dict(inputs=image, target=target) for image, target in zip(*images)],
        ),
        train_cfg=dict(by_epoch=False, max_iters=iterations),
        optim_wrapper=dict(
            type='OptimWrapper',
            accumulative_counts=2,
            clip_grad=dict(max_norm=2.0),
            optimizer=dict(type='SGD', lr=0.05, momentum=0.9, weight_decay=1.0),
            constructor='LayerDecayOptimWrapperConstructor',
            paramwise_cfg=dict(layer_decay_rate=0.9),
        ),
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=iterations)
        ),
        randomness=dict(seed=0),
    )


def exact():
    return torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )


def train_a_share(rank, processes, backend, folder, *model):
    """A process of a run that is interrupted after two of four iterations."""
    os.environ['LOCAL_RANK'] = str(rank)
    torch.set_num_threads(1)
    if backend == 'nccl':
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend, init_method=f'file://{folder}/group', rank=rank, world_size=processes
    )
    cfg = load('mask_rcnn_l2vit_b_coco_fsdp.py')
    with exact():
        for iterations in (2, 4):
            cfg_of_run = settings(folder / 'sharded', iterations, 4 // processes, *model)
            FlexibleRunner(
                **cfg_of_run,
                strategy=deepcopy(cfg.strategy),
                launcher='pytorch',
                resume=iterations == 4,
            ).train()
    dist.destroy_process_group()


@pytest.mark.train
@pytest.mark.parametrize('backend', ['gloo', pytest.param('nccl', marks=cuda)])
def test_processes_that_share_a_model_train_it_as_one_does(backend, tmp_path):
    if backend == 'gloo' and torch.cuda.is_available():
        pytest.skip('mmengine would train on the GPU')
    processes = 2 if backend == 'gloo' else min(2, torch.cuda.device_count())
    # Each process has images of its own, which on a CPU no BatchNorm can look beyond.
    norm_type, norm_eval = ('BN', True) if backend == 'gloo' else ('SyncBN', False)
    with exact():
        Runner(**settings(tmp_path / 'one', 4, 4, 'BN', norm_eval)).train()
    torch.multiprocessing.spawn(
        train_a_share, (processes, backend, tmp_path, norm_type, norm_eval), processes
    )

    # Written by this test.
    one, sharded = (
        torch.load(tmp_path / name / 'iter_4.pth', map_location='cpu', weights_only=False)[
            'state_dict'
        ]
        for name in ('one', 'sharded')
    )
    torch.testing.assert_close(sharded, one, rtol=0, atol=1e-6 if backend == 'gloo' else 1e-4)
    model = Regressor('BN', norm_eval)
    model.load_state_dict(sharded, strict=True)
    start = settings(tmp_path, 4, 4, 'BN', norm_eval)['model'].state_dict()
    moved = {name: (one[name] - start[name]).abs().max() for name in start}
    assert moved['backbone.stages.3.1.mlp.fc1.weight'] > 1e-3
    assert moved['backbone.stages.0.1.mlp.fc1.weight'] == 0  # frozen


# --- SyncBN --------------------------------------------------------------------------------------


def batch_norms(model):
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


@pytest.mark.parametrize('option', ['model.backbone.norm_cfg.type', 'sync_bn'])
def test_sync_bn_is_one_line(option):
    config = str(CONFIGS / 'mask_rcnn_l2vit_t_coco.py')
    value = 'torch' if option == 'sync_bn' else 'SyncBN'
    cfg = load_config(
        Namespace(config=config, cfg_options={option: value}, launcher='none', work_dir=None)
    )
    with DefaultScope.overwrite_default_scope('mmdet'), torch.device('meta'):
        model = MODELS.build(cfg.model)
        plain = MODELS.build(load(config).model)
    if option == 'sync_bn':
        model = convert_sync_batchnorm(model, cfg.sync_bn)  # as Runner does for several processes
    assert {type(norm) for norm in batch_norms(plain)} == {nn.BatchNorm2d}
    assert {type(norm) for norm in batch_norms(model)} == {nn.SyncBatchNorm}
    assert len(batch_norms(model)) == len(batch_norms(plain)) > 2
    assert model.state_dict().keys() == plain.state_dict().keys()


def forward_backward(norm_type, device):
    torch.manual_seed(0)
    model = L2ViT('pico', norm_cfg=dict(type=norm_type)).to(device)
    images = torch.rand(3, 3, 96, 80, device=device, requires_grad=True)
    # One batch without padding, and one of images of three sizes.
    maps = [*model(images), *model(images, torch.tensor([[96, 80], [50, 33], [7, 80]]))]
    generator = torch.Generator().manual_seed(1)
    weights = [torch.rand(m.shape, generator=generator).to(device) for m in maps]
    sum((m * w).sum() for m, w in zip(maps, weights)).backward()
    gradients = {name: value.grad for name, value in model.named_parameters()}
    return maps, images.grad, gradients, dict(model.named_buffers())


def test_sync_bn_of_one_process_is_bn():
    torch.testing.assert_close(
        forward_backward('SyncBN', 'cpu'), forward_backward('BN', 'cpu'), rtol=0, atol=0
    )


@pytest.mark.parametrize('group_of_one', [pytest.param('nccl', marks=cuda)], indirect=True)
def test_sync_bn_in_a_group_of_one_is_bn_cuda(group_of_one):
    with exact():
        synced, plain = forward_backward('SyncBN', 'cuda'), forward_backward('BN', 'cuda')
    torch.testing.assert_close(synced, plain, rtol=1e-4, atol=1e-4)
