"""Whole models: published files as they were released, and files that don't fit."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner
from mmengine.runner.checkpoint import _load_checkpoint, _load_checkpoint_to_model

import l2vit_mm  # noqa: F401  (before any toolbox)
from l2vit_mm.backbones import FLattenPVTv2, L2ViT
from l2vit_mm.engine.hooks import StrictLoadHook
from tests import golden

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
GOLDEN = golden.load_all()
# Model of the published figures: config, and what it sets otherwise.
CASES = {
    'l2vit_t_cls': ('l2vit_t_imagenet.py', {}),
    'flatten_pvt_t': ('flatten_pvt_t_imagenet.py', {}),
    'flatten_pvt_t_sr8421': ('flatten_pvt_t_imagenet.py', dict(sr_ratios=(8, 4, 2, 1))),
    'flatten_pvt_v2_b0': ('flatten_pvt_v2_b0_imagenet.py', {}),
    'flatten_swin_t': ('flatten_swin_t_imagenet.py', {}),
    'flatten_cswin_t': ('flatten_cswin_t_imagenet.py', {}),
}


def classifier(name):
    config, settings = CASES[name]
    cfg = Config.fromfile(str(CONFIGS / config)).model
    cfg.backbone.update(settings)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        return MODELS.build(cfg).eval()


def load(model, path):
    """What Runner.load_checkpoint does with a hook."""
    checkpoint = _load_checkpoint(str(path), map_location='cpu')
    StrictLoadHook().after_load_checkpoint(SimpleNamespace(model=model, _resume=False), checkpoint)
    _load_checkpoint_to_model(model, checkpoint, strict=False)


@pytest.mark.parametrize('name', CASES)
def test_published_file_gives_the_published_logits(name, tmp_path):
    path = tmp_path / 'published.pth'
    torch.save({'model': golden.state_dict(GOLDEN[name]), 'epoch': 299}, path)
    model = classifier(name)
    load(model, path)
    (run,) = GOLDEN[name]['runs']
    with torch.no_grad():
        logits = model(golden.image(run), mode='tensor')
    assert golden.error(logits, run['outputs']['logits']) < 1e-4


def test_other_forms_of_files_and_the_runner(tmp_path):
    name = 'flatten_pvt_v2_b0'
    published = golden.state_dict(GOLDEN[name])
    torch.save({f'module.{key}': value for key, value in published.items()}, tmp_path / 'ddp.pth')
    model = classifier(name)
    load(model, tmp_path / 'ddp.pth')
    assert torch.equal(model.head.fc.bias, published['head.bias'])
    # A file trained here, through the runner that the configs make.
    torch.save({'state_dict': model.state_dict()}, tmp_path / 'ours.pth')
    other = classifier(name)
    runner = Runner(
        other,
        str(tmp_path),
        experiment_name='published',
        default_hooks=dict(loading=dict(type='StrictLoadHook')),
    )
    for file in ('ours.pth', 'ddp.pth'):
        torch.nn.init.zeros_(other.head.fc.bias)
        runner.load_checkpoint(str(tmp_path / file))
        for a, b in zip(model.state_dict().values(), other.state_dict().values()):
            assert torch.equal(a, b)


def test_a_file_that_does_not_fit_is_an_error(tmp_path):
    published = golden.state_dict(GOLDEN['flatten_pvt_v2_b0'])
    del published['head.bias'], published['block1.0.mlp.fc1.bias']
    published['block1.0.attn.table'] = torch.zeros(1)
    published['block1.0.norm1.weight'] = torch.zeros(7)
    torch.save({'model': published}, tmp_path / 'misfit.pth')
    with pytest.raises(
        RuntimeError,
        match=r'fit ImageClassifier: its backbone looks like '
        r'flatten-pvt-v2-b0; missing: backbone\.stages\.0\.0\.mlp\.fc1\.bias, head\.fc'
        r'\.bias; unexpected: backbone\.stages\.0\.0\.attn\.table; of another shape: '
        r'backbone\.stages\.0\.0\.attn_norm\.weight',
    ):
        load(classifier('flatten_pvt_v2_b0'), tmp_path / 'misfit.pth')


# --- detectors and segmenters --------------------------------------------------------------------


class Detector(torch.nn.Module):
    def __init__(self, backbone, classes=4):
        super().__init__()
        self.backbone = backbone
        self.neck = torch.nn.Conv2d(192, 8, 1)
        self.bbox_head = torch.nn.Linear(8, classes)


def random_detector(*args, **kwargs):
    model = Detector(*args, **kwargs)
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value))
    return model


def loaded(model, state, resume=False, **settings):
    checkpoint = {'state_dict': state}
    runner = SimpleNamespace(model=model, _resume=resume)
    StrictLoadHook(**settings).after_load_checkpoint(runner, checkpoint)
    _load_checkpoint_to_model(model, checkpoint, strict=True)
    return model.state_dict()


def test_a_detector_is_loaded_whole():
    source = random_detector(L2ViT('pico'))
    state = source.state_dict()
    assert state._metadata['backbone.stem.bn1'] == dict(version=2)
    checkpoint = {'state_dict': state}
    StrictLoadHook().after_load_checkpoint(
        SimpleNamespace(model=Detector(L2ViT('pico')), _resume=False), checkpoint
    )
    assert checkpoint['state_dict']._metadata == state._metadata
    for resume in (False, True):
        for name, value in loaded(Detector(L2ViT('pico')), state, resume).items():
            assert torch.equal(value, state[name])
    # Norms of maps that one of the two doesn't have.
    fewer = random_detector(L2ViT('pico', out_indices=(1, 3))).state_dict()
    more = Detector(L2ViT('pico', out_indices=(0, 1, 3)))
    ones = more.state_dict()['backbone.norm0.weight'].clone()
    assert torch.equal(loaded(more, fewer)['backbone.norm0.weight'], ones)
    assert 'backbone.norm2.weight' not in loaded(more, state)


def test_a_detector_whose_backbone_has_the_published_names():
    name = 'flatten_pvt_v2_b0'
    published = golden.state_dict(GOLDEN[name])
    published = {
        f'backbone.{key}': value for key, value in published.items() if not key.startswith('head.')
    }
    rest = {
        key: value
        for key, value in random_detector(FLattenPVTv2('b0')).state_dict().items()
        if not key.startswith('backbone.')
    }
    state = loaded(Detector(FLattenPVTv2('b0')), {**published, **rest})
    assert torch.equal(state['neck.weight'], rest['neck.weight'])
    assert torch.equal(
        state['backbone.stages.0.0.mlp.fc1.bias'], published['backbone.block1.0.mlp.fc1.bias']
    )


def test_what_does_not_fit_a_detector():
    state = random_detector(L2ViT('pico')).state_dict()
    state['rpn.weight'] = state.pop('neck.weight')
    with pytest.raises(
        RuntimeError,
        match=r'the checkpoint does not fit Detector: missing: '
        r'neck\.weight; unexpected: rpn\.weight$',
    ):
        loaded(Detector(L2ViT('pico')), state, resume=True)
    other = random_detector(FLattenPVTv2('b0')).state_dict()
    with pytest.raises(RuntimeError, match='its backbone looks like flatten-pvt-v2-b0; missing: '):
        loaded(Detector(L2ViT('pico')), other)
    with pytest.raises(
        RuntimeError,
        match=r'fit Detector: a backbone without heads is loaded with '
        r'model\.backbone\.init_cfg; missing: bbox_head\.bias',
    ):
        loaded(Detector(L2ViT('pico')), L2ViT('pico').state_dict())
    with pytest.raises(RuntimeError, match='without heads is loaded .*unexpected: head.fc.bias'):
        loaded(Detector(FLattenPVTv2('b0')), golden.state_dict(GOLDEN['flatten_pvt_v2_b0']))
    # A backbone that isn't ours.
    with pytest.raises(RuntimeError, match='missing: backbone.bias'):
        state = {'backbone.weight': torch.zeros(2, 2), 'neck.bias': torch.zeros(8)}
        loaded(Detector(torch.nn.Linear(2, 2)), state)


def test_other_classes_are_asked_for():
    state = random_detector(L2ViT('pico'), classes=9).state_dict()
    with pytest.raises(RuntimeError, match='of another shape: bbox_head.bias, bbox_head.weight'):
        loaded(Detector(L2ViT('pico')), state)
    model = Detector(L2ViT('pico'))
    start = model.bbox_head.weight.detach().clone()
    found = loaded(model, state, initial=['bbox_head.'])
    assert torch.equal(found['bbox_head.weight'], start)
    assert torch.equal(found['neck.weight'], state['neck.weight'])
    with pytest.raises(RuntimeError, match='of another shape'):
        loaded(model, state, resume=True, initial=['bbox_head.'])
    with pytest.raises(TypeError, match="initial must be a sequence of strings, got 'bbox_head.'"):
        StrictLoadHook(initial='bbox_head.')
