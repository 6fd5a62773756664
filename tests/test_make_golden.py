"""The scripts that make golden figures, on our own code in the place of the published."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from l2vit_mm import compat
from l2vit_mm.registry import registered_backbones
from tests import golden
from tests.golden import make_golden, make_mmcv_ops


class Stage(nn.Module):
    """Hands out an output under the name of a published module."""

    def forward(self, x):
        return x


class AsPublished(nn.Module):
    """One of our backbones with the names, the stages and the outputs of a published model."""

    def __init__(self, name):
        super().__init__()
        self.published, self.entry = make_golden.PUBLISHED[name], golden.load_all()[name]
        classifier = self.published.logits
        cls = registered_backbones()[self.published.file]
        options = {'output_norm': False} if self.published.stages else {}
        self.backbone = cls(**self.published.backbone, **options)
        if classifier:
            self.head = cls(**{**self.published.backbone, 'out_indices': (3,)})
        for path in self.published.stages:
            parent = self
            *parents, last = path.split('.')
            for part in parents:
                if part not in parent._modules:
                    parent.add_module(part, nn.Module())
                parent = parent.get_submodule(part)
            parent.add_module(last, Stage())

    def state_dict(self):
        return {key: torch.zeros(shape) for key, shape in self.entry['keys'].items()}

    def load_state_dict(self, state):
        assert set(state) == set(self.entry['keys'])
        self.state = state
        for module in (self.backbone, *([self.head] if self.published.logits else [])):
            module.load_state_dict(state, strict=True)

    def forward(self, x):
        outs = self.backbone(x)
        if not self.published.logits:
            return outs
        # Of L2ViT's classifier only the logits are kept, no stages.
        for path, out in zip(self.published.stages, outs, strict=False):
            self.get_submodule(path)(out.flatten(2).transpose(1, 2))
        (features,) = self.head(x)
        return F.linear(
            features.mean((2, 3)),
            self.state['head.weight'].double(),
            self.state['head.bias'].double(),
        )


@pytest.mark.slow
@pytest.mark.parametrize('name', make_golden.PUBLISHED)
def test_round_trip(name):
    expected = golden.load_all()[name]
    entry = make_golden.describe(name, make_golden.PUBLISHED[name], AsPublished(name))
    assert list(entry) == list(expected)
    assert entry['backbone'] == expected['backbone'] and entry['keys'] == expected['keys']
    if not make_golden.PUBLISHED[name].logits:  # else the stand-in has its backbone twice
        assert entry['params'] == expected['params']
    assert len(entry['runs']) == len(expected['runs'])
    for run, figures in zip(entry['runs'], expected['runs'], strict=True):
        assert list(run) == list(figures)
        assert (run['input'], run['image_key']) == (figures['input'], figures['image_key'])
        assert list(run['outputs']) == list(figures['outputs'])
        for key, out in run['outputs'].items():
            known = figures['outputs'][key]
            assert list(out) == list(known)
            assert (out['shape'], out['index']) == (known['shape'], known['index'])
            for field in ('mean', 'std', 'value'):
                assert out[field] == pytest.approx(known[field], rel=1e-8, abs=1e-8)


def test_every_entry_has_its_recipe():
    assert set(make_golden.PUBLISHED) == set(golden.load_all())
    for name, published in make_golden.PUBLISHED.items():
        assert name in golden.load(published.file)


def test_file_format():
    for file in Path(golden.__file__).parent.glob('*.json'):
        assert make_golden.dumps(json.loads(file.read_text())) == file.read_text()


def test_command_line(monkeypatch, tmp_path, capsys):
    """A checkout that is missing is named; a model of one is built, and its entry is written."""
    argv = ['make_golden', 'flatten_pvt_v2_b0', '--folder', str(tmp_path)]
    monkeypatch.setattr(sys, 'argv', argv)
    with pytest.raises(SystemExit, match='PYTHONPATH must have FLatten-Transformer of https'):
        make_golden.main()
    (tmp_path / 'models').mkdir()
    (tmp_path / 'models' / 'flatten_pvt_v2.py').write_text(
        'from tests.test_make_golden import AsPublished\n'
        'def flatten_pvt_v2_b0(la_sr_ratios, attn_type, drop_path_rate):\n'
        '    assert (la_sr_ratios, attn_type, drop_path_rate) == ("1111", "LLLL", 0)\n'
        '    return AsPublished("flatten_pvt_v2_b0")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    make_golden.main()
    assert 'flatten-pvt-v2.json: flatten_pvt_v2_b0' in capsys.readouterr().out
    written = json.loads((tmp_path / 'flatten-pvt-v2.json').read_text())
    assert (
        written['flatten_pvt_v2_b0']['keys']
        == golden.load('flatten-pvt-v2')['flatten_pvt_v2_b0']['keys']
    )


def test_detection_backbone_needs_no_mmdetection_2(tmp_path):
    folder = tmp_path / 'mmdet' / 'models' / 'backbones'
    folder.mkdir(parents=True)
    (folder / 'l2vit.py').write_text(
        'from mmcv_custom import load_checkpoint\n'
        'from mmdet.utils import get_root_logger\n'
        'from mmcv.cnn import constant_init, kaiming_init\n'
        'from ...builder import BACKBONES\n'
        '@BACKBONES.register_module()\n'
        'class L2ViT:\n'
        '    def __init__(self, block_type, conv_stem, drop_path_rate):\n'
        '        print(block_type)\n'
    )
    code = 'from tests.golden.make_golden import PUBLISHED, build; build(PUBLISHED["l2vit_t_det"])'
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, 'PYTHONPATH': f'{tmp_path}{os.pathsep}{root}'}
    result = subprocess.run(
        [sys.executable, '-c', code], env=environment, text=True, capture_output=True
    )
    assert result.stdout == 'mix_local_enhanced_vit\n', result.stderr


def test_mmcv_ops():
    """The operators that we supply, in the place of a compiled mmcv's."""
    pytest.importorskip('mmcv')
    compat.supply_mmcv_ops()
    with np.load(make_mmcv_ops.FILE) as file:
        known = {name: torch.from_numpy(array) for name, array in file.items()}
    inputs = {name: known[name] for name in make_mmcv_ops.INPUTS}
    out = make_mmcv_ops.figures(inputs)
    assert set(known) == {*inputs, *out}
    for name, value in out.items():
        torch.testing.assert_close(value, known[name], rtol=1e-4, atol=1e-4)
