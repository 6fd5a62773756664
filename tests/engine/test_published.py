"""A published file, as it was released, gives the published logits through mmpretrain's tools."""
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner
from mmengine.runner.checkpoint import _load_checkpoint, _load_checkpoint_to_model

import l2vit_mm  # noqa: F401  (before any toolbox)
from l2vit_mm.engine.published import PublishedClassifierHook
from tests import golden

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
GOLDEN = {**golden.load('l2vit'), **golden.load('flatten')}
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
    PublishedClassifierHook().after_load_checkpoint(SimpleNamespace(model=model), checkpoint)
    _load_checkpoint_to_model(model, checkpoint, strict=False)


@pytest.mark.parametrize('name', CASES)
def test_published_file_gives_the_published_logits(name, tmp_path):
    path = tmp_path / 'published.pth'
    torch.save({'model': golden.state_dict(GOLDEN[name]), 'epoch': 299}, path)
    model = classifier(name)
    load(model, path)
    run, = GOLDEN[name]['runs']
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
    runner = Runner(other, str(tmp_path), experiment_name='published',
                    default_hooks=dict(published=dict(type='PublishedClassifierHook')))
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
    with pytest.raises(RuntimeError, match=r'on FLattenPVTv2: missing: backbone\.stages\.0\.0\.mlp'
                       r'\.fc1\.bias, head\.fc\.bias; unknown: backbone\.stages\.0\.0\.attn\.table; '
                       r'of another shape: backbone\.stages\.0\.0\.attn_norm\.weight'):
        load(classifier('flatten_pvt_v2_b0'), tmp_path / 'misfit.pth')
