"""The FLatten families: published values and names, sizes, arguments."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from l2vit_mm.backbones import (
    FLattenCSWin,
    FLattenDeiT,
    FLattenPVT,
    FLattenPVTv2,
    FLattenSwin,
    L2ViT,
)
from l2vit_mm.checkpoint.convert import to_published
from l2vit_mm.layers import ATTENTIONS
from l2vit_mm.registry import registered_backbones
from tests import golden
from tests.backbones.checks import make, randomized

MODELS = golden.load_all()
# How the models of the published figures are built here.
PUBLISHED = {
    model: (cls, figures['backbone'])
    for name, cls in registered_backbones().items()
    if name != 'l2vit'
    for model, figures in golden.load(name).items()
}
FAMILIES = (FLattenPVT, FLattenPVTv2, FLattenSwin, FLattenCSWin, FLattenDeiT)


def small(family, arch=(), **kwargs):
    return (
        make(family, **kwargs) if not arch else family({**family.test_arch, **dict(arch)}, **kwargs)
    )


by_family = pytest.mark.parametrize('family', FAMILIES, ids=lambda family: family.__name__)


# What a published file of an arch holds, by the family's rules: name -> shape.


def linear(name, inputs, outputs, bias=True):
    return {f'{name}.weight': [outputs, inputs], **({f'{name}.bias': [outputs]} if bias else {})}


def conv(name, inputs, outputs, kernel, groups=1):
    return {
        f'{name}.weight': [outputs, inputs // groups, kernel, kernel],
        f'{name}.bias': [outputs],
    }


def norm(name, channels):
    return {f'{name}.weight': [channels], f'{name}.bias': [channels]}


def mlp(name, channels, hidden, depthwise=False):
    return {
        **linear(f'{name}.fc1', channels, hidden),
        **linear(f'{name}.fc2', hidden, channels),
        **(conv(f'{name}.dwconv.dwconv', hidden, hidden, 3, hidden) if depthwise else {}),
    }


def focused(name, channels, heads, num_keys):
    dim = channels // heads
    return {
        f'{name}.scale': [1, 1, channels],
        f'{name}.positional_encoding': [1, num_keys, channels],
        **conv(f'{name}.dwc', dim, dim, 5, dim),
    }


def pyramid_keys(settings, v2, sr_ratios=(1, 1, 1, 1)):
    keys, before, side = {}, 3, 56
    for index, (c, depth, heads, ratio, r) in enumerate(
        zip(
            settings['channels'],
            settings['depths'],
            settings['num_heads'],
            settings['mlp_ratios'],
            sr_ratios,
        )
    ):
        s = str(index + 1)
        kernel = (3 if index else 7) if v2 else (2 if index else 4)
        keys |= conv(f'patch_embed{s}.proj', before, c, kernel) | norm(f'patch_embed{s}.norm', c)
        keys |= norm(f'norm{s}', c) if v2 else {f'pos_embed{s}': [1, side * side, c]}
        for block in range(depth):
            b = f'block{s}.{block}'
            keys |= norm(f'{b}.norm1', c) | norm(f'{b}.norm2', c)
            keys |= focused(f'{b}.attn', c, heads, (side // r) ** 2)
            keys |= linear(f'{b}.attn.q', c, c) | linear(f'{b}.attn.kv', c, 2 * c)
            keys |= linear(f'{b}.attn.proj', c, c) | mlp(f'{b}.mlp', c, c * ratio, v2)
            if r > 1:
                keys |= conv(f'{b}.attn.sr', c, c, r) | norm(f'{b}.attn.norm', c)
        before, side = c, side // 2
    return keys | linear('head', c, 1000) | ({} if v2 else norm('norm', c))


def swin_keys(settings, size, window):
    first = settings['channels'][0]
    keys = conv('patch_embed.proj', 3, first, 4) | norm('patch_embed.norm', first)
    side, n = size // 4, window * window
    for index, (c, depth, heads) in enumerate(
        zip(settings['channels'], settings['depths'], settings['num_heads'])
    ):
        for block in range(depth):
            b = f'layers.{index}.blocks.{block}'
            keys |= norm(f'{b}.norm1', c) | norm(f'{b}.norm2', c) | mlp(f'{b}.mlp', c, 4 * c)
            keys |= linear(f'{b}.attn.qkv', c, 3 * c) | linear(f'{b}.attn.proj', c, c)
            if index < 2:
                keys |= focused(f'{b}.attn', c, heads, side * side)
                continue
            keys[f'{b}.attn.relative_position_bias_table'] = [(2 * window - 1) ** 2, heads]
            keys[f'{b}.attn.relative_position_index'] = [n, n]
            if block % 2 and side > window:
                keys[f'{b}.attn_mask'] = [(side // window) ** 2, n, n]
        if index < 3:
            d = f'layers.{index}.downsample'
            keys |= norm(f'{d}.norm', 4 * c) | linear(f'{d}.reduction', 4 * c, 2 * c, bias=False)
        side //= 2
    return keys | norm('norm', c) | linear('head', c, 1000)


def cswin_keys(settings, size):
    first = settings['channels'][0]
    keys = conv('stage1_conv_embed.0', 3, first, 7) | norm('stage1_conv_embed.2', first)
    side = size // 4
    for index, (c, depth, heads) in enumerate(
        zip(settings['channels'], settings['depths'], settings['num_heads'])
    ):
        for block in range(depth):
            b = f'stage{index + 1}.{block}'
            keys |= norm(f'{b}.norm1', c) | norm(f'{b}.norm2', c) | mlp(f'{b}.mlp', c, 4 * c)
            keys |= linear(f'{b}.qkv', c, 3 * c) | linear(f'{b}.proj', c, c)
            if index < 2:
                keys |= focused(f'{b}.attns.0', c, heads, side * side)
            branches = 2 if index == 2 else 1
            for branch in range(branches):
                share = c // branches
                keys |= conv(f'{b}.attns.{branch}.get_v', share, share, 3, share)
        if index < 3:
            m = f'merge{index + 1}'
            keys |= conv(f'{m}.conv', c, 2 * c, 3) | norm(f'{m}.norm', 2 * c)
        side //= 2
    return keys | norm('norm', c) | linear('head', c, 1000)


def published_keys(family, arch):
    settings = family.arch_zoo[arch]
    size = 384 if '384' in arch else 224
    if family is FLattenSwin:
        return swin_keys(settings, size, window=12 if size == 384 else 7)
    if family is FLattenCSWin:
        return cswin_keys(settings, size)
    return pyramid_keys(settings, v2=family is FLattenPVTv2)


def count(keys):
    return sum(
        math.prod(shape)
        for name, shape in keys.items()
        if not name.endswith(('relative_position_index', 'attn_mask'))
    )


@pytest.mark.parametrize('name', PUBLISHED)
def test_rules_of_the_families_give_the_published_keys(name):
    family, kwargs = PUBLISHED[name]
    keys = (
        pyramid_keys(family.arch_zoo['tiny'], False, kwargs['sr_ratios'])
        if 'sr_ratios' in kwargs
        else published_keys(family, kwargs['arch'])
    )
    assert keys == MODELS[name]['keys']
    assert count(keys) == MODELS[name]['params']


ARCHES = [
    (family, arch) for family in FAMILIES if family is not FLattenDeiT for arch in family.arch_zoo
]


@pytest.mark.parametrize(
    'family, arch', ARCHES, ids=lambda x: x if isinstance(x, str) else x.__name__
)
def test_keys_and_parameters_of_each_arch(family, arch):
    keys = published_keys(family, arch)
    with torch.device('meta'):
        model = family(arch, out_indices=(3,))
    own = dict(model.named_parameters())
    renamed = {family.published_names.ours(key): shape for key, shape in keys.items()}
    del renamed[None]
    assert renamed.keys() == own.keys() == model.state_dict().keys()
    for name, shape in renamed.items():
        assert math.prod(shape) == own[name].numel(), name
    dropped = count(
        {key: shape for key, shape in keys.items() if family.published_names.ours(key) is None}
    )
    assert sum(p.numel() for p in own.values()) + dropped == count(keys)
    # And back.
    with torch.device('meta'):
        published = to_published(model, model.state_dict())
    assert {name: [*value.shape] for name, value in published.items()} == {
        name: shape for name, shape in keys.items() if not name.startswith('head.')
    }


@pytest.mark.parametrize(
    'family, arch, parameters',
    [
        (FLattenPVT, 'tiny', 12_149_480),
        (FLattenPVTv2, 'b0', 3_594_824),
        (FLattenSwin, 'tiny', 29_192_384),
        (FLattenCSWin, 'tiny', 21_201_768),
    ],
)
def test_parameters_of_classifiers(family, arch, parameters):
    with torch.device('meta'):
        model = family(arch, out_indices=(3,))
        head = nn.Linear(model.channels[3], 1000)
    assert sum(p.numel() for m in (model, head) for p in m.parameters()) == parameters


@pytest.mark.parametrize(
    'arch, channels, heads', [('tiny', 192, 3), ('small', 384, 6), ('base', 768, 12)]
)
def test_keys_and_parameters_of_deit(arch, channels, heads):
    with torch.device('meta'):
        model = FLattenDeiT(arch)
    c = channels
    block = {
        f'attn.core.{n}': s
        for n, s in dict(
            scale=[c],
            **{
                'position.table': [14, 14, c],
                'dwc.weight': [c // heads, 1, 5, 5],
                'dwc.bias': [c // heads],
            },
        ).items()
    }
    block |= linear('attn.qkv', c, 3 * c) | linear('attn.proj', c, c)
    block |= norm('attn_norm', c) | norm('mlp_norm', c) | mlp('mlp', c, 4 * c)
    keys = {f'stages.{i}.0.{n}': s for i in range(12) for n, s in block.items()}
    keys |= conv('stem.proj', 3, c, 16) | {'stem.position.table': [14, 14, c]} | norm('norm11', c)
    assert {n: list(p.shape) for n, p in model.state_dict().items()} == keys


@by_family
def test_drop_path_rises_linearly(family):
    model = small(family, drop_path_rate=0.5)
    rates = [block.drop_path.drop_prob for stage in model.stages for block in stage]
    assert rates == pytest.approx(torch.linspace(0, 0.5, len(rates)).tolist())


@by_family
def test_initialisation(family):
    model = small(
        family,
        arch=dict(channels=64, num_heads=4)
        if family is FLattenDeiT
        else dict(channels=(32, 64, 64)[: len(family.test_arch['channels'])]),
    )
    block = model.stages[1][0]
    assert block.mlp.fc1.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not block.mlp.fc1.bias.any()
    assert not table_of(model).any()
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith('scale'))
    for name, parameter in model.named_parameters():
        if name == 'stem.position.table' or name.endswith('bias.table'):
            assert parameter.std().item() == pytest.approx(0.02, rel=0.15), name
    if family is FLattenPVTv2:  # fan-out counts the channels of a group: one
        assert block.mlp.dwconv.weight.std().item() == pytest.approx((2 / 9) ** 0.5, rel=0.15)
        assert not model.stem.proj.bias.any()


@pytest.mark.parametrize('attention', ATTENTIONS)
@by_family
def test_every_attention_in_every_family(family, attention):
    model = small(family, attention=attention)
    outs = model(torch.randn(1, 3, 40, 56))
    sum(out.square().mean() for out in outs).backward()
    assert all(out.isfinite().all() for out in outs)
    assert all(p.grad.isfinite().all() for p in model.parameters())
    if attention != 'focused':
        other = randomized(small(family)).eval()(torch.ones(1, 3, 40, 56))
        own = randomized(small(family, attention=attention)).eval()(torch.ones(1, 3, 40, 56))
        assert not torch.allclose(other[-1], own[-1])


# Loading


@pytest.mark.parametrize('name', PUBLISHED)
def test_published_file_loads_through_init_cfg_at_another_resolution(name, tmp_path):
    family, kwargs = PUBLISHED[name]
    published = golden.state_dict(MODELS[name])
    path = tmp_path / 'published.pth'
    torch.save({'model': published, 'epoch': 299}, path)
    model = family(
        **kwargs, pretrain_size=288, init_cfg=dict(type='Pretrained', checkpoint=str(path))
    )
    model.init_weights()  # raises where a parameter is left unset
    state = model.state_dict()
    tables = 0
    for key, value in published.items():
        ours = family.published_names.ours(key)
        if ours is None:
            continue
        if 'positional_encoding' in key or 'pos_embed' in key:
            tables += 1
            old, new = math.isqrt(value.shape[1]), state[ours].shape[0]
            mode = 'bilinear' if 'pos_embed' in key else 'bicubic'
            value = F.interpolate(
                value.reshape(1, old, old, -1).permute(0, 3, 1, 2),
                (new, new),
                mode=mode,
                align_corners=False,
            )[0].permute(1, 2, 0)
        torch.testing.assert_close(state[ours], value.reshape(state[ours].shape))
    assert tables >= 4
    # And a file trained here, at yet another.
    family(**kwargs, pretrain_size=100).load_state_dict(state, strict=True)


def test_swin_file_loads_with_another_window():
    published = golden.state_dict(MODELS['flatten_swin_t'])
    model = FLattenSwin('tiny', window_size=12)
    model.load_state_dict(published, strict=True)
    value = published['layers.2.blocks.1.attn.relative_position_bias_table']
    value = F.interpolate(value.T.reshape(1, 12, 13, 13), (23, 23), mode='bicubic')
    torch.testing.assert_close(model.stages[2][1].attn.bias.table, value.reshape(12, -1).T)


@pytest.mark.parametrize('name', PUBLISHED)
def test_loading_misses_nothing_silently(name):
    family, kwargs = PUBLISHED[name]
    for key in ('attn.scale', 'attn.positional_encoding', 'attns.0.get_v.bias', 'mlp.fc1.bias'):
        state = golden.state_dict(MODELS[name])
        first = next((full for full in state if full.endswith(key)), None)
        if first is not None:
            del state[first]
            ours = family.published_names.ours(first)
            with pytest.raises(RuntimeError, match=ours.replace('.', r'\.')):
                family(**kwargs).load_state_dict(state, strict=True)
    state = golden.state_dict(MODELS[name])
    state['stages.0.0.attn.rpe'] = torch.zeros(3)
    with pytest.raises(RuntimeError, match='rpe'):
        family(**kwargs).load_state_dict(state, strict=True)


def test_table_of_other_channels_is_refused():
    state = small(FLattenSwin).state_dict()
    state['stages.0.0.attn.core.position.table'] = torch.zeros(1, 64, 9)
    with pytest.raises(RuntimeError, match='size mismatch for stages.0.0.attn.core.position.table'):
        small(FLattenSwin).load_state_dict(state, strict=True)


# Arguments


@by_family
def test_output_norm_is_a_layer_norm_of_the_raw_map(family):
    image = torch.randn(1, 3, 64, 48)
    raw = small(family, output_norm=False).eval()(image)
    if family is FLattenPVTv2:
        with pytest.raises(ValueError, match='output_norm must be False.*, got True'):
            small(family, output_norm=True)
        return
    normed = small(family, output_norm=True).eval()(image)
    for a, b in zip(raw, normed):
        a = F.layer_norm(a.permute(0, 2, 3, 1), a.shape[1:2]).permute(0, 3, 1, 2)
        torch.testing.assert_close(a, b)
    default = small(family).eval()(image)
    assert torch.equal(default[0], (raw if family is FLattenPVT else normed)[0])


def test_mixed_epsilons_of_pvt():
    for family in (FLattenPVT, FLattenPVTv2):
        model = small(family, sr_ratios=(2, 1))
        for name, module in model.named_modules():
            if isinstance(module, nn.LayerNorm):
                fine = name.endswith(('attn_norm', 'mlp_norm')) or name.startswith('stage_norms')
                assert module.eps == (1e-6 if fine else 1e-5), name


def test_epsilon_of_deit_is_that_of_vision_transformers():
    for name, module in small(FLattenDeiT).named_modules():
        if name.endswith(('attn_norm', 'mlp_norm')):
            assert module.eps == 1e-6, name


def kinds(model):
    return [
        ''.join(
            'L' if type(getattr(block.attn, 'core', None)).__name__.startswith('Focused') else 'S'
            for block in stage
        )
        for stage in model.stages
    ]


def test_attn_types():
    assert kinds(FLattenPVT('tiny', attn_types='LLSS')) == ['LL', 'LL', 'SS', 'SS']
    assert kinds(FLattenPVT('tiny', attn_types='S')) == ['SS'] * 4
    assert kinds(FLattenPVT('tiny', attn_types='LSLSSLLL')) == ['LS', 'LS', 'SL', 'LL']
    assert kinds(FLattenSwin('tiny')) == ['LL', 'LL', 'SSSSSS', 'SS']
    assert kinds(FLattenDeiT('tiny', attn_types='LLLLLLSSSSSS')) == ['L'] * 6 + ['S'] * 6
    assert kinds(FLattenDeiT('tiny')) == ['L'] * 12


def test_reduction_of_pvt():
    def reductions(**kwargs):
        return [
            [
                1 if block.attn.reduction is None else block.attn.reduction.stride[0]
                for block in stage
            ]
            for stage in FLattenPVT('tiny', **kwargs).stages
        ]

    assert reductions() == [[1, 1]] * 4
    assert reductions(attn_types='SSSS') == [[8, 8], [4, 4], [2, 2], [1, 1]]
    assert reductions(attn_types='LSLLSSLL') == [[1, 4 * 2], [1, 1], [2, 2], [1, 1]]
    assert reductions(sr_ratios=(4, 2, 1, 1)) == [[4, 4], [2, 2], [1, 1], [1, 1]]
    assert reductions(sr_ratios=(4, 2, 1, 1), attn_types='LSLS') == [[4, 4], [2, 2], [1, 1], [1, 1]]


def test_focusing_factor_and_kernel_size():
    image = torch.randn(1, 3, 32, 32)
    default = small(FLattenSwin)(image)[0]
    assert not torch.allclose(small(FLattenSwin, focusing_factor=4)(image)[0], default)
    core = small(FLattenSwin, kernel_size=7).stages[0][0].attn.core
    assert core.dwc.weight.shape == (8, 1, 7, 7)


def table_of(model):
    """The first block's position encoding."""
    attn = model.stages[0][0].attn
    return (attn.branches[0] if hasattr(attn, 'branches') else attn).core.position.table


@pytest.mark.parametrize('family', [FLattenSwin, FLattenCSWin])
def test_linear_windows(family):
    whole = small(family).eval()
    n = len(whole.depths)
    # A window of the pretraining map, or larger: the same keys, and up to that size the same.
    same = small(family, linear_window_size=(100,) + (None,) * (n - 1)).eval()
    assert table_of(same).shape == table_of(whole).shape == (8, 8, 8)
    same.load_state_dict(randomized(whole).state_dict(), strict=True)
    for size in [(32, 32), (20, 48)]:
        image = torch.randn(1, 3, *size)
        torch.testing.assert_close(same(image), whole(image))
    # In smaller windows, the top left one doesn't see what is right of it.
    windowed = randomized(
        small(family, linear_window_size=(4,) + (None,) * (n - 1), out_indices=(0,))
    ).eval()
    image = torch.randn(1, 3, 48, 64)
    changed = image.clone()
    changed[..., 28:] += 1
    a, b = windowed(image)[0], windowed(changed)[0]
    assert torch.equal(a[..., :4, :4], b[..., :4, :4])
    assert not torch.allclose(a[..., 4:8], b[..., 4:8])
    # A published table is resized to the window.
    windowed.load_state_dict(whole.state_dict(), strict=False)
    assert table_of(windowed).shape[:2] == (4, 4) and table_of(windowed).any()


def test_softmax_windows_and_stripes():
    model = FLattenSwin('tiny')
    assert [block.attn.window.shift for block in model.stages[2]] == [False, True] * 3
    assert {block.attn.window.height for stage in model.stages[2:] for block in stage} == {7}
    branches = [
        [(b.window.height, b.window.width) if b.window else None for b in stage[0].attn.branches]
        for stage in FLattenCSWin('tiny', attn_types='SSSS').stages
    ]
    assert branches == [
        [(None, 1), (1, None)],
        [(None, 2), (2, None)],
        [(None, 7), (7, None)],
        [None],
    ]
    assert [len(stage[0].attn.branches) for stage in FLattenCSWin('tiny').stages] == [1, 1, 2, 1]
    assert FLattenSwin.arch_zoo['base-384']['window_size'] == 12
    assert FLattenCSWin.arch_zoo['base-384']['split_sizes'] == (1, 2, 12, 12)


@pytest.mark.parametrize(
    'family, kwargs, error, message',
    [
        (
            FLattenPVT,
            dict(arch='huge'),
            ValueError,
            "arch must be one of tiny, small.*, got 'huge'",
        ),
        (FLattenPVT, dict(attn_types='LXLL'), ValueError, "must be a string of 'L' and 'S', got"),
        (FLattenPVT, dict(attn_types='LLL'), ValueError, 'one per stage .4. or one per block .8.'),
        (FLattenPVT, dict(sr_ratios=(8, 4, 2)), ValueError, r'sr_ratios must be 4 numbers'),
        (FLattenPVT, dict(sr_ratios=(8, 4, 2, 0)), ValueError, 'sr_ratios'),
        (FLattenPVT, dict(attention='cosine'), ValueError, "attention must be .*, got 'cosine'"),
        (
            FLattenPVT,
            dict(kernel_size=4),
            ValueError,
            'kernel_size must be a positive odd integer, got 4',
        ),
        (
            FLattenPVT,
            dict(focusing_factor=0),
            ValueError,
            'focusing_factor must be a positive number, got 0',
        ),
        (
            FLattenPVT,
            dict(drop_path_rate=1),
            ValueError,
            r'drop_path_rate must be in \[0, 1\), got 1',
        ),
        (
            FLattenPVT,
            dict(pretrain_size=0),
            ValueError,
            'pretrain_size must be 1 pixel or more, got 0',
        ),
        (
            FLattenPVT,
            dict(window_size=7),
            TypeError,
            r"FLattenPVT.__init__\(\) got an unexpected keyword argument 'window_size'",
        ),
        (
            FLattenSwin,
            dict(window_size=0),
            ValueError,
            'window_size must be 1 token or more, got 0',
        ),
        (
            FLattenSwin,
            dict(linear_window_size=(56,)),
            ValueError,
            'linear_window_size must be .*None',
        ),
        (
            FLattenSwin,
            dict(linear_window_size=56),
            ValueError,
            'linear_window_size must be .*, got 56',
        ),
        (FLattenCSWin, dict(split_sizes=(1, 2)), ValueError, 'split_sizes'),
        (
            FLattenCSWin,
            dict(
                arch=dict(
                    channels=(9, 9),
                    depths=(1, 1),
                    num_heads=(3, 3),
                    split_sizes=(1, 1),
                    attn_types='S',
                ),
                out_indices=(0,),
            ),
            ValueError,
            r'must have even num_heads .*, got \(3, 3\)',
        ),
        (FLattenDeiT, dict(out_indices=(12,)), ValueError, 'out_indices'),
        (FLattenDeiT, dict(arch=dict(channels=8, depth=2)), ValueError, 'num_heads'),
    ],
)
def test_bad_arguments(family, kwargs, error, message):
    with pytest.raises(error, match=message):
        family(**kwargs)


# Mixed precision. On a CPU autocast is bfloat16; float16 overflows at 65504.


def amp_train(family, device, dtype, steps=20):
    torch.manual_seed(0)
    model = family(next(iter(family.arch_zoo))).to(device).train()
    # Activations 50 times as large: those of the stem, and of all queries, keys and values.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith('stem.proj') or '.qkv.' in name or '.q.' in name or '.kv.' in name:
                parameter.mul_(50)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16, init_scale=128.0)
    image = 50 * torch.randn(2, 3, 64, 96, device=device)
    for _ in range(steps):
        with torch.autocast(device, dtype):
            loss = sum(out.float().square().mean() for out in model(image))
        assert loss.isfinite()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for name, parameter in model.named_parameters():
            assert parameter.grad.isfinite().all(), name
        scaler.step(optimizer)
        scaler.update()


def needs_gpu(test):
    missing = pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')
    return pytest.mark.cuda(missing(test))


ALL = pytest.mark.parametrize('family', [*FAMILIES, L2ViT], ids=lambda family: family.__name__)


@ALL
def test_mixed_precision_training_stays_finite(family):
    amp_train(family, 'cpu', torch.bfloat16, steps=5)  # its range is that of float32


@needs_gpu
@ALL
def test_mixed_precision_training_stays_finite_cuda(family):
    amp_train(family, 'cuda', torch.float16)


def half_precision_error(family, device, size, **arch):
    torch.manual_seed(0)
    first = next(iter(family.arch_zoo.values()))
    model = family({**first, **arch}).to(device).eval()
    image = torch.randn(1, 3, *size, device=device)
    with torch.no_grad():
        expected = model(image)
        with torch.autocast(device, torch.float16):
            outs = model(image)
    return max(((a.float() - b).norm() / b.norm()).item() for a, b in zip(outs, expected))


@ALL
def test_float16_agrees_with_float32(family):
    assert half_precision_error(family, 'cpu', (128, 160)) < 0.02


@pytest.mark.slow
@ALL
def test_float16_agrees_with_float32_on_a_large_image(family):
    # What a large image has more of is tokens, in each block: one block per stage shows it.
    arch = dict(depth=2) if family is FLattenDeiT else dict(depths=(1, 1, 1, 1))
    assert half_precision_error(family, 'cpu', (800, 1216), **arch) < 0.02


@needs_gpu
@ALL
def test_float16_agrees_with_float32_cuda(family):
    assert half_precision_error(family, 'cuda', (800, 1216)) < 0.02
