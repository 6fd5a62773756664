"""Learning rates and weight decay by depth: the printed table, number by number."""

import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope

import l2vit_mm  # noqa: F401  (before any toolbox)

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
# Depth; tensors and numbers without weight decay; tensors and numbers with it.
L2VIT_T = [
    (0, 8, 624, 2, 42768),
    (1, 10, 1440, 6, 112320),
    (2, 16, 1923, 7, 120864),
    (3, 13, 3264, 7, 519552),
    (4, 16, 3846, 7, 462912),
    (5, 13, 6528, 7, 2071296),
    (6, 16, 7692, 7, 1810560),
    (7, 10, 5760, 6, 1776384),
    (8, 16, 7692, 7, 1810560),
    (9, 10, 5760, 6, 1776384),
    (10, 16, 7692, 7, 1810560),
    (11, 13, 13056, 7, 8271360),
    (12, 16, 15384, 7, 7160064),
    (13, 29, 9008, 21, 20267776),
]
FLATTEN_SWIN_T = [
    (0, 3, 288, 1, 4608),
    (1, 11, 302432, 5, 111392),
    (2, 11, 302432, 5, 111392),
    (3, 13, 154016, 6, 516896),
    (4, 11, 153248, 5, 443168),
    (5, 11, 8556, 5, 2064384),
    (6, 9, 7020, 4, 1769472),
    (7, 9, 7020, 4, 1769472),
    (8, 9, 7020, 4, 1769472),
    (9, 9, 7020, 4, 1769472),
    (10, 9, 7020, 4, 1769472),
    (11, 11, 17112, 5, 8257536),
    (12, 9, 14040, 4, 7077888),
    (13, 29, 9008, 21, 20267776),
]
BLOCKS = [
    f'backbone.stages.{stage}.{block}'
    for stage, depth in enumerate((2, 2, 6, 2))
    for block in range(depth)
]


def build_model(config):
    cfg = Config.fromfile(str(CONFIGS / config))
    with torch.device('meta'), DefaultScope.overwrite_default_scope(cfg.default_scope):
        return MODELS.build(cfg.model)


@pytest.fixture
def printed(caplog):
    """The last table that mmengine's current logger was given."""
    logger = MMLogger.get_current_instance()
    logger.addHandler(caplog.handler)
    yield lambda: [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith('Parameters of the optimizer:')
    ][-1]
    logger.removeHandler(caplog.handler)


def wrapper(model, lr=1e-4, weight_decay=0.05, **paramwise_cfg):
    return build_optim_wrapper(
        model,
        dict(
            type='OptimWrapper',
            constructor='LayerDecayOptimWrapperConstructor',
            optimizer=dict(type='AdamW', lr=lr, weight_decay=weight_decay),
            paramwise_cfg=paramwise_cfg,
        ),
    )


def settings(model, optim_wrapper):
    """Name to learning rate and weight decay."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group['lr'], group['weight_decay'])
        for group in optim_wrapper.optimizer.param_groups
        for parameter in group['params']
    }


@pytest.mark.parametrize(
    'config, expected',
    [('mask_rcnn_l2vit_t_coco.py', L2VIT_T), ('mask_rcnn_flatten_swin_t_coco.py', FLATTEN_SWIN_T)],
)
def test_printed_table(config, expected, printed):
    wrapper(build_model(config), layer_decay_rate=0.9)
    _, header, *lines = printed().splitlines()
    assert re.split('  +', header) == ['depth', 'lr', 'weight decay', 'tensors', 'values', 'of']
    rows = [re.split('  +', line.strip()) for line in lines]
    found = []
    for depth, kept, decaying in zip(range(14), rows[::2], rows[1::2], strict=True):
        found.append((depth, *map(int, kept[3:5]), *map(int, decaying[3:5])))
    assert found == expected
    for index, (depth, lr, weight_decay, _, _, places) in enumerate(rows):
        assert (int(depth), weight_decay) == (index // 2, ('0', '0.05')[index % 2])
        assert lr == f'{1e-4 * 0.9 ** (13 - index // 2):.4g}'
        where = ['backbone.stem', *BLOCKS, 'neck, rpn_head, roi_head'][index // 2]
        assert places.endswith(where), places


@pytest.mark.parametrize(
    'config',
    [
        'mask_rcnn_l2vit_t_coco.py',
        'upernet_flatten_deit_t_ade20k.py',
        'flatten_swin_t_imagenet.py',
        'retinanet_flatten_pvt_v2_b0_coco.py',
    ],
)
def test_every_parameter_has_the_settings_of_its_place(config):
    model = build_model(config)
    found = settings(model, wrapper(model, layer_decay_rate=0.8))
    depths = [len(stage) for stage in model.backbone.stages]
    assert found.keys() == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        depth = sum(depths) + 1
        if name.startswith('backbone.stem'):
            depth = 0
        elif name.startswith('backbone.stages'):
            stage, block = map(int, name.split('.')[2:4])
            depth = sum(depths[:stage]) + block + 1
        elif name.startswith('backbone.downsamples'):
            depth = sum(depths[: int(name.split('.')[2]) + 1]) + 1
        elif name.startswith('backbone.stage_norms'):
            depth = sum(depths[: int(name.split('.')[2]) + 1])
        kept = parameter.ndim == 1 or name.endswith('.table')
        assert found[name] == (
            pytest.approx(1e-4 * 0.8 ** (sum(depths) + 1 - depth)),
            0.0 if kept else 0.05,
        ), name
    kept = {name.split('.')[-1] for name, (_, decay) in found.items() if decay == 0.0}
    assert kept <= {'bias', 'weight', 'scale', 'temperature', 'table'}


def test_frozen_stages_are_left_out():
    model = build_model('mask_rcnn_l2vit_t_coco.py')
    for module in (model.backbone.stem, model.backbone.stages[0]):
        module.requires_grad_(False)
    names = settings(model, wrapper(model, layer_decay_rate=0.9)).keys()
    assert names == {name for name, p in model.named_parameters() if p.requires_grad}


def test_without_a_rate_only_weight_decay_differs():
    model = build_model('mask_rcnn_flatten_swin_t_coco.py')
    optim_wrapper = wrapper(model)
    assert len(optim_wrapper.optimizer.param_groups) == 2
    assert set(settings(model, optim_wrapper).values()) == {(1e-4, 0.0), (1e-4, 0.05)}


def test_what_the_user_sets_holds():
    model = build_model('mask_rcnn_flatten_swin_t_coco.py')
    found = settings(
        model,
        wrapper(
            model,
            layer_decay_rate=0.5,
            norm_decay_mult=0.1,
            custom_keys={'position.table': dict(decay_mult=2.0), 'roi_head': dict(lr_mult=3.0)},
        ),
    )
    block = 'backbone.stages.3.1.'
    assert found[block + 'attn.qkv.weight'] == (0.5e-4, 0.05)
    assert found[block + 'attn_norm.weight'] == (0.5e-4, pytest.approx(0.005))
    assert found[block + 'attn.bias.table'] == (0.5e-4, 0.0)
    assert found['backbone.stages.0.0.attn.core.position.table'] == (
        pytest.approx(1e-4 * 0.5**12),
        0.1,
    )
    assert found['roi_head.bbox_head.fc_cls.weight'] == (pytest.approx(3e-4), 0.05)
    assert found['neck.lateral_convs.0.conv.weight'] == (1e-4, 0.05)


def test_bad_settings():
    model = build_model('mask_rcnn_l2vit_t_coco.py')
    for rate in (0.0, 1.1):
        with pytest.raises(ValueError, match=rf'layer_decay_rate must be in \(0, 1\], got {rate}'):
            wrapper(model, layer_decay_rate=rate)
    for missing in ('lr', 'weight_decay'):
        with pytest.raises(ValueError, match=f'optimizer.{missing} must be a number'):
            wrapper(model, **{missing: None}, layer_decay_rate=0.9)
    model.backbone = torch.nn.Conv2d(1, 1, 1)
    with pytest.raises(TypeError, match='get_layer_depth, got a Conv2d in MaskRCNN'):
        wrapper(model, layer_decay_rate=0.9)
    assert len(wrapper(model).optimizer.param_groups) == 2  # which doesn't ask for depths


def test_optimizer_without_weight_decay():
    optim_wrapper = wrapper(
        build_model('mask_rcnn_l2vit_t_coco.py'), weight_decay=0.0, layer_decay_rate=0.9
    )
    groups = optim_wrapper.optimizer.param_groups
    assert len(groups) == 14 and {group['weight_decay'] for group in groups} == {0.0}
