import pytest
import torch
from torch import nn

from l2vit_mm.backbones import L2ViT
from l2vit_mm.layers import Window
from tests import golden

MODELS = golden.load('l2vit')


def pico(**kwargs) -> L2ViT:
    torch.manual_seed(0)
    return L2ViT('pico', **kwargs)


def test_parameter_counts():
    def count(arch, **kwargs):
        with torch.device('meta'):
            return sum(p.numel() for p in L2ViT(arch, **kwargs).parameters())

    assert count('tiny') == MODELS['l2vit_t_det']['params']
    head = 768 * 1000 + 1000
    assert count('tiny', out_indices=(3,)) + head == MODELS['l2vit_t_cls']['params']
    # The paper's figures, rounded as it prints them.
    assert round((count('small', out_indices=(3,)) + head) / 1e6) == 50
    base_head = 1024 * 1000 + 1000
    assert round((count('base', out_indices=(3,)) + base_head) / 1e6) == 89
    assert count('base-384') == count('base')
    assert L2ViT.arch_zoo['base-384']['window_size'] == 12
    assert count('pico') < 2e6


@pytest.mark.parametrize('key', ['stages.0.0.mlp.fc1.bias', 'stem.norm.bias'])
def test_strict_loading_misses_nothing_silently(key):
    state = pico().state_dict()
    del state[key]
    with pytest.raises(RuntimeError, match=key.replace('.', r'\.')):
        pico().load_state_dict(state, strict=True)


def test_strict_loading_refuses_what_it_does_not_know():
    state = golden.state_dict(MODELS['l2vit_t_cls'])
    state['stages.0.0.attn.bias_table'] = torch.zeros(3)
    with pytest.raises(RuntimeError, match='bias_table'):
        L2ViT('tiny').load_state_dict(state, strict=True)


def test_classifier_loads_into_a_detection_backbone():
    model = L2ViT('tiny')
    published = golden.state_dict(MODELS['l2vit_t_cls'])
    model.load_state_dict(published, strict=True)
    assert torch.equal(model.norm3.weight, published['norm.weight'])
    assert torch.equal(model.norm0.weight, torch.ones(96))  # initial values: the file has none
    assert 'head.weight' in published  # the caller's dict is left alone


def test_detection_file_loads_where_fewer_maps_are_returned():
    published = golden.state_dict(MODELS['l2vit_t_det'])
    model = L2ViT('tiny', out_indices=(1, 2, 3))
    model.load_state_dict(published, strict=True)
    assert torch.equal(model.norm1.bias, published['norm1.bias'])
    L2ViT('tiny', output_norm=False).load_state_dict(published, strict=True)


def test_loading_inside_a_detector_and_by_mmengine():
    from mmengine.runner.checkpoint import load_state_dict

    detector = nn.Module()
    detector.backbone = L2ViT('tiny')
    published = golden.state_dict(MODELS['l2vit_t_det'])
    detector.load_state_dict({f'backbone.{k}': v for k, v in published.items()}, strict=True)
    other = L2ViT('tiny')
    load_state_dict(other, published, strict=True)
    for (name, a), b in zip(other.state_dict().items(), detector.backbone.state_dict().values()):
        assert torch.equal(a, b), name
    assert torch.equal(other.stem.conv1.weight, published['downsample_layers.0.proj.proj.0.weight'])


def test_out_indices_and_output_norm():
    image = torch.randn(1, 3, 64, 64)
    full = pico().eval()(image)
    some = pico(out_indices=(3, 1)).eval()(image)
    torch.testing.assert_close(some, (full[3], full[1]))
    raw = pico(output_norm=False).eval()(image)
    normed = nn.functional.layer_norm(raw[2].permute(0, 2, 3, 1), (128,)).permute(0, 3, 1, 2)
    torch.testing.assert_close(normed, full[2])


def test_window_size_is_used():
    image = torch.randn(1, 3, 96, 96)
    assert not torch.allclose(pico(window_size=4).eval()(image)[0], pico().eval()(image)[0])


def test_in_channels():
    assert pico(in_channels=5)(torch.randn(2, 5, 32, 32))[0].shape == (2, 32, 8, 8)


@pytest.mark.parametrize('frozen', [-1, 0, 1, 2, 4])
def test_frozen_stages(frozen):
    model = pico(frozen_stages=frozen)
    assert model.train() is model
    parts = [model.stem, *model.stages]
    for index, part in enumerate(parts):
        is_frozen = index <= frozen
        assert all(p.requires_grad != is_frozen for p in part.parameters())
        assert all(m.training != is_frozen for m in part.modules())
    for index, part in enumerate(model.downsamples):
        assert all(p.requires_grad != (index + 2 <= frozen) for p in part.parameters())
    assert all(p.requires_grad for p in model.norm0.parameters())
    before = model.stem.bn1.running_mean.clone()
    sum(out.sum() for out in model(torch.randn(2, 3, 64, 64))).backward()
    assert torch.equal(before, model.stem.bn1.running_mean) == (frozen >= 0)


def test_norm_eval():
    model = pico(norm_eval=True)
    model.eval().train()
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 2 + 4  # the stem's, and one a linear block
    assert not any(m.training for m in norms)
    assert model.stages[0].training


def test_norm_cfg():
    cfg = dict(type='SyncBN', requires_grad=False, eps=1e-3)
    model = pico(norm_cfg=cfg)
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert len(norms) == 6
    for norm in norms:
        assert isinstance(norm, nn.SyncBatchNorm) and norm.eps == 1e-3
        assert not norm.weight.requires_grad
    assert cfg == dict(type='SyncBN', requires_grad=False, eps=1e-3)
    with pytest.raises(ValueError, match="BN, BN2d, SyncBN, got 'GN'"):
        pico(norm_cfg=dict(type='GN'))


def test_checkpointing_keeps_fewer_activations():
    def kept(with_cp):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: sizes.append(x.numel()) or x, lambda x: x
        ):
            pico(with_cp=with_cp).train()(torch.randn(2, 3, 64, 64))
        return sum(sizes)

    assert kept(True) < kept(False) / 2


def test_drop_path_rises_linearly():
    model = pico(drop_path_rate=0.7)
    rates = [block.drop_path.drop_prob for stage in model.stages for block in stage]
    assert rates == pytest.approx([0.1 * i for i in range(8)])
    image = torch.randn(2, 3, 32, 32)
    assert not torch.equal(model.train()(image)[3], model(image)[3])
    assert torch.equal(model.eval()(image)[3], model(image)[3])


def test_get_layer_depth():
    model = pico()
    depths = {
        name: model.get_layer_depth('backbone.' + name, 'backbone.')
        for name, _ in model.named_parameters()
    }
    assert {total for _, total in depths.values()} == {10}
    assert depths['stem.conv1.weight'][0] == 0
    assert depths['stages.0.0.attn.qkv.weight'][0] == 1
    assert depths['stages.0.1.lcm.bn.bias'][0] == 2
    assert depths['downsamples.0.proj.weight'][0] == depths['stages.1.0.attn_norm.bias'][0] == 3
    assert depths['stages.3.1.mlp.fc2.weight'][0] == 8
    assert depths['norm0.weight'][0] == 9
    assert model.get_layer_depth('neck.lateral_convs.0.weight', 'backbone.') == (9, 10)


def test_own_arch():
    arch = dict(channels=(16, 32), depths=(1, 3), num_heads=(2, 4), window_size=4, mlp_ratio=2.0)
    model = L2ViT(arch, out_indices=(0, 1))
    assert [tuple(out.shape) for out in model(torch.randn(1, 3, 33, 17))] == [
        (1, 16, 9, 5),
        (1, 32, 5, 3),
    ]
    assert model.stages[0][0].mlp.fc1.out_features == 32
    assert model.stages[0][0].attn.window == Window(4, 4)


def test_initialisation():
    model = pico()
    assert torch.all(model.stages[1][1].attn.temperature == 32**-0.5)
    qkv = model.stages[3][0].attn.qkv
    assert qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert torch.all(qkv.bias == 0)
    conv = model.stem.conv2  # Kaiming, fan-out
    assert conv.weight.std().item() == pytest.approx((2 / (32 * 9)) ** 0.5, rel=0.05)


def test_bfloat16_autocast_stays_near_float32():
    model = pico().eval()
    image = torch.randn(1, 3, 128, 160)
    expected = model(image)
    with torch.autocast('cpu', torch.bfloat16):
        outs = model(image)
    for out, reference in zip(outs, expected):
        assert (out.float() - reference).norm() / reference.norm() < 0.05


def test_pretrained_becomes_init_cfg(tmp_path):
    source = pico()
    nn.init.constant_(source.stem.conv1.weight, 3.0)
    path = tmp_path / 'pico.pth'
    torch.save(source.state_dict(), path)
    for model in (
        pico(pretrained=str(path)),
        pico(init_cfg=dict(type='Pretrained', checkpoint=str(path))),
    ):
        model.init_weights()
        assert torch.all(model.stem.conv1.weight == 3.0)
    with pytest.raises(ValueError, match='pretrained'):
        pico(pretrained=str(path), init_cfg=dict(type='Pretrained', checkpoint=str(path)))


@pytest.mark.parametrize('key', ['state_dict', 'model', None])
def test_init_cfg_takes_published_files(tmp_path, key):
    published = golden.state_dict(MODELS['l2vit_t_cls'])
    path = tmp_path / 'tiny.pth'
    torch.save({key: published, 'epoch': 3} if key else published, path)
    model = L2ViT('tiny', init_cfg=dict(type='Pretrained', checkpoint=str(path)))
    model.init_weights()
    assert torch.equal(model.norm3.bias, published['norm.bias'])
    assert torch.equal(model.stem.conv1.weight, published['downsample_layers.0.proj.proj.0.weight'])


def test_init_cfg_refuses_a_file_that_does_not_fit(tmp_path):
    path = str(tmp_path / 'misfit.pth')
    state = pico().state_dict()
    del state['stem.conv1.bias']
    state['stages.0.0.attn.table'] = torch.zeros(2)
    state['stages.0.0.mlp.fc1.bias'] = torch.zeros(5)
    torch.save(state, path)
    model = pico(init_cfg=dict(type='Pretrained', checkpoint=path))
    with pytest.raises(
        RuntimeError,
        match=r'missing: stem\.conv1\.bias; unexpected: '
        r'stages\.0\.0\.attn\.table; of another shape: stages\.0\.0\.mlp\.fc1\.bias',
    ):
        model.init_weights()
    torch.save(dict(state_dict=dict(backbone_of_another_kind=torch.zeros(1))), path)
    with pytest.raises(RuntimeError, match='backbone_of_another_kind'):
        pico(init_cfg=dict(type='Pretrained', checkpoint=path)).init_weights()


@pytest.mark.parametrize(
    'kwargs, error, message',
    [
        (dict(arch='huge'), ValueError, "arch must be one of .*tiny.*base-384.*, got 'huge'"),
        (dict(arch=3), TypeError, 'arch must be .*, got 3'),
        (dict(arch=dict(channels=(8,), depths=(1,))), ValueError, 'num_heads'),
        (dict(arch=dict(channels=(8,), depths=(1,), num_heads=(1,), heads=1)), ValueError, 'heads'),
        (dict(arch=dict(channels=(8, 16), depths=(1,), num_heads=(1,))), ValueError, 'lengths'),
        (
            dict(arch=dict(channels=(9,), depths=(1,), num_heads=(2,)), out_indices=(0,)),
            ValueError,
            r'multiples of num_heads, got \(9,\) and \(2,\)',
        ),
        (dict(out_indices=(0, 4)), ValueError, r'out_indices must be .* 0 to 3, got \(0, 4\)'),
        (dict(out_indices=3), ValueError, 'out_indices must be a sequence .*, got 3'),
        (dict(out_indices=(-1,)), ValueError, 'out_indices'),
        (dict(out_indices=(1, 1)), ValueError, 'out_indices'),
        (dict(out_indices=()), ValueError, 'out_indices'),
        (dict(frozen_stages=5), ValueError, 'frozen_stages must be from -1 to 4, got 5'),
        (dict(drop_path_rate=1.0), ValueError, 'drop_path_rate'),
        (dict(window_size=0), ValueError, 'window_size must be 1 token or more, got 0'),
        (dict(windows=7), TypeError, "argument 'windows'; did you mean 'window_size'"),
    ],
)
def test_bad_arguments(kwargs, error, message):
    with pytest.raises(error, match=message):
        L2ViT(**{'arch': 'pico', **kwargs})
