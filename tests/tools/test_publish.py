import hashlib
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from l2vit_mm.apis.errors import run
from l2vit_mm.backbones import L2ViT
from l2vit_mm.checkpoint.safe_load import load
from tools.publish import main

pytestmark = pytest.mark.once


@pytest.fixture
def detector():
    model = nn.Module()
    model.backbone, model.neck = L2ViT('pico'), nn.Conv2d(192, 64, 1)
    return model.state_dict()


def publish(capsys, *args):
    """The file that is written, which the tool prints, and whose hash is in its name."""
    capsys.readouterr()
    main([str(arg) for arg in args])
    path = Path(re.match(r'(\S+): \d+ tensors$', capsys.readouterr().out)[1])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.stem.endswith(f'-{digest[:8]}')
    return path


@pytest.mark.parametrize('name', ['model.pth', 'model.safetensors'])
def test_weights_without_the_run(name, detector, tmp_path, capsys):
    twin = {f'module.{key}': torch.zeros_like(value) for key, value in detector.items()}
    torch.save(
        dict(
            state_dict=detector,
            optimizer=dict(state={}),
            ema_state_dict=twin,
            message_hub={},
            param_schedulers=[],
            meta=dict(dataset_meta=['cat']),
        ),
        tmp_path / 'epoch_1.pth',
    )
    path = publish(capsys, tmp_path / 'epoch_1.pth', tmp_path / name)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(['epoch_1.pth', path.name])
    written = load(path)
    if name.endswith('.pth'):
        assert written.pop('meta') == dict(dataset_meta=['cat'])
    assert written.keys() == {'state_dict'}
    written = written['state_dict']
    assert written.keys() == detector.keys()
    for key, value in detector.items():
        assert torch.equal(written[key], value) and written[key].dtype == value.dtype


@pytest.mark.parametrize('extension', ['pth', 'safetensors'])
def test_the_backbone_of_a_detector_initialises_another(extension, detector, tmp_path, capsys):
    torch.save(dict(state_dict=detector, optimizer={}), tmp_path / 'detector.pth')
    path = publish(
        capsys,
        tmp_path / 'detector.pth',
        tmp_path / f'backbone.{extension}',
        '--backbone',
        '--half',
    )
    other = L2ViT('pico', init_cfg=dict(type='Pretrained', checkpoint=str(path)))
    other.init_weights()
    for name, value in other.state_dict().items():
        expected = detector[f'backbone.{name}']
        torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-6, msg=name)


def error_of(capsys, *args):
    with pytest.raises(SystemExit) as exit_:
        run(lambda: main([str(arg) for arg in args]))
    (error,) = capsys.readouterr().err.splitlines()
    assert exit_.value.code == 2
    return error


def test_errors(detector, tmp_path, capsys):
    path, out = tmp_path / 'file.pth', tmp_path / 'out.pth'
    assert str(path) in error_of(capsys, path, out)
    for content in (
        dict(state_dict=nn.Conv2d(3, 4, 1).state_dict()),
        nn.Conv2d(3, 4, 1).state_dict(),
    ):
        torch.save(content, path)
        assert (
            f'{path}: checkpoint must have parameters of a backbone, got no name that '
            "starts with 'backbone.'" in error_of(capsys, path, out, '--backbone')
        )
    assert 'out must end in .pth or .safetensors, got ' in error_of(
        capsys, path, tmp_path / 'out.txt'
    )
    torch.save(dict(optimizer={}), path)
    assert 'checkpoint must hold weights, as ' in error_of(capsys, path, out)
    detector['neck.bias'][3] = torch.nan
    torch.save(detector, path)
    assert f'{path}: weights must be finite, got NaN or infinity in neck.bias' in error_of(
        capsys, path, out
    )
    # Halved, a number can be too large.
    detector['neck.bias'][3] = 1e6
    torch.save(detector, path)
    assert 'got NaN or infinity in neck.bias' in error_of(capsys, path, out, '--half')
    assert [file.name for file in tmp_path.iterdir()] == ['file.pth']


def test_a_broken_safetensors_file(tmp_path, capsys):
    path = tmp_path / 'file.safetensors'
    safetensors.torch.save_file(dict(a=torch.ones(999)), path)
    whole = path.read_bytes()
    for content in (whole[:-100], whole[:20], b'', b'<!DOCTYPE html><html></html>'):
        path.write_bytes(content)
        assert f'cannot load checkpoint {path}: it is not a complete safetensors file' in error_of(
            capsys, path, tmp_path / 'out.pth'
        )
