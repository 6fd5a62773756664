"""Models by name, with published weights."""

import pytest
import safetensors.torch
import torch
from mmengine.registry import DefaultScope

import l2vit_mm
from l2vit_mm.backbones import L2ViT
from tests import golden

GOLDEN = golden.load_all()
NAMES = {
    'l2vit_t_cls': 'l2vit-tiny',
    'flatten_pvt_t': 'flatten-pvt-tiny',
    'flatten_pvt_v2_b0': 'flatten-pvt-v2-b0',
    'flatten_swin_t': 'flatten-swin-tiny',
    'flatten_cswin_t': 'flatten-cswin-tiny',
}


# The form of a file has nothing to do with the names in it.
@pytest.mark.parametrize(
    'name, form', [*((name, 'pth') for name in NAMES), ('flatten_pvt_v2_b0', 'safetensors')]
)
def test_published_files_give_the_published_logits(name, form, tmp_path):
    file = tmp_path / f'file.{form}'
    state = golden.state_dict(GOLDEN[name])
    if form == 'pth':
        torch.save({'model': state}, file)
    else:
        safetensors.torch.save_file(state, file)
    model = l2vit_mm.get_model(NAMES[name], task='classifier', pretrained=file).eval()
    (run,) = GOLDEN[name]['runs']
    with torch.no_grad():
        logits = model(golden.image(run))
    assert golden.error(logits, run['outputs']['logits']) < 1e-4


def test_other_ways():
    backbone = l2vit_mm.get_model('l2vit-pico', drop_path_rate=0.1)
    assert type(backbone) is L2ViT and len(backbone.out_indices) == 4
    model = l2vit_mm.get_model('l2vit-pico', task='classifier', num_classes=7)
    assert model(torch.rand(2, 3, 40, 50)).shape == (2, 7)
    with DefaultScope.overwrite_default_scope('mmengine'):  # a Runner leaves one behind
        l2vit_mm.get_model('l2vit-pico', task='classifier')
    plain = l2vit_mm.get_model('flatten-deit-tiny', task='classifier')
    assert plain(torch.rand(1, 3, 32, 48)).shape == (1, 1000)


def test_errors(tmp_path):
    with pytest.raises(ValueError, match="one of .*l2vit-pico, l2vit-tiny.*, got 'tiny'"):
        l2vit_mm.get_model('tiny')
    with pytest.raises(ValueError, match="task must be 'backbone' or 'classifier', got 'detector'"):
        l2vit_mm.get_model('l2vit-tiny', task='detector')
    torch.save(golden.state_dict(GOLDEN['flatten_swin_t']), tmp_path / 'file.pth')
    with pytest.raises(RuntimeError, match='its backbone looks like flatten-swin-tiny; '):
        l2vit_mm.get_model('l2vit-tiny', task='classifier', pretrained=tmp_path / 'file.pth')
    with pytest.raises(RuntimeError, match='shape: head.fc.bias, head.fc.weight'):
        l2vit_mm.get_model(
            'flatten-swin-tiny', task='classifier', num_classes=9, pretrained=tmp_path / 'file.pth'
        )
