"""Files of several kinds through init_cfg and load_backbone; what is said of them."""

import logging

import pytest
import torch
from mmengine.logging import MMLogger

import l2vit_mm
from l2vit_mm.backbones import (
    L2ViT,
)
from l2vit_mm.checkpoint.load import looks_like
from l2vit_mm.registry import find_model
from tests import golden

MODELS = golden.load_all()
NAMES = {
    'l2vit_t_cls': 'l2vit-tiny',
    'l2vit_t_det': 'l2vit-tiny',
    'flatten_pvt_t': 'flatten-pvt-tiny',
    'flatten_pvt_v2_b0': 'flatten-pvt-v2-b0',
    'flatten_swin_t': 'flatten-swin-tiny',
    'flatten_cswin_t': 'flatten-cswin-tiny',
}
FORMS = {
    'plain': lambda state: state,
    'model': lambda state: {'model': state, 'model_ema': {}, 'epoch': 299},
    'model_ema': lambda state: {'model_ema': state, 'epoch': 299},
    'DDP': lambda state: {'model': {f'module.{key}': value for key, value in state.items()}},
    'float16': lambda state: {
        key: value.half() if value.is_floating_point() else value for key, value in state.items()
    },
}


@pytest.fixture
def log():
    """Level and text of what the backbones have said."""
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append((record.levelname, record.getMessage()))
    logger = MMLogger.get_current_instance()
    logger.addHandler(handler)
    yield lambda: [record for record in records if 'tensors loaded' in record[1]]
    logger.removeHandler(handler)


# Every form of a small file, and every file in one form: a form has nothing to do with the names.
@pytest.mark.parametrize(
    'name, forms',
    [
        *((name, ('float16',)) for name in NAMES if name != 'flatten_pvt_v2_b0'),
        ('flatten_pvt_v2_b0', tuple(FORMS)),
    ],
)
def test_published_files_in_every_form(name, forms, tmp_path, log):
    published = golden.state_dict(MODELS[name])
    family, arch = find_model(NAMES[name])
    expected = family(arch)
    expected.load_state_dict(published)  # whose values test_flatten.py and test_l2vit.py check
    for form in forms:
        torch.save(FORMS[form](published), tmp_path / f'{form}.pth')
        model = l2vit_mm.load_backbone(tmp_path / f'{form}.pth', NAMES[name])
        for key, value in expected.state_dict().items():
            if form == 'float16':
                value = value.half().float() if value.is_floating_point() else value
            assert torch.equal(model.state_dict()[key], value), (form, key)
    assert len(log()) == len(forms) and all('resized' not in text for _, text in log())


def test_backbone_of_a_detector(tmp_path, log):
    source = L2ViT('pico')
    torch.nn.init.normal_(source.stem.norm.bias)
    state = {f'backbone.{key}': value for key, value in source.state_dict().items()}
    state.update(
        {
            'neck.convs.0.weight': torch.zeros(3),
            'rpn_head.conv.weight': torch.zeros(3),
            'rpn_head.conv.bias': torch.zeros(3),
        }
    )
    torch.save({'state_dict': state, 'meta': {}, 'optimizer': {}}, tmp_path / 'detector.pth')
    model = l2vit_mm.load_backbone(tmp_path / 'detector.pth', 'l2vit-pico', out_indices=(3,))
    for key, value in model.state_dict().items():
        assert torch.equal(source.state_dict()[key], value)
    count = len(model.state_dict())
    assert log() == [
        (
            'INFO',
            f'L2ViT: {count} tensors loaded\n  skipped: norm0.weight, '
            'norm0.bias, norm1.weight, norm1.bias, norm2.weight, norm2.bias, neck, rpn_head',
        )
    ]


def test_report(tmp_path, log):
    published = golden.state_dict(MODELS['flatten_pvt_v2_b0'])
    published['block1.0.mlp.fc1.bias'][0] = torch.nan
    published['block2.0.norm1.weight'][0] = torch.inf
    torch.save({'model': published}, tmp_path / 'file.pth')
    model = l2vit_mm.load_backbone(tmp_path / 'file.pth', 'flatten-pvt-v2-b0', pretrain_size=256)
    tables = [name for name in model.state_dict() if name.endswith('position.table')]
    ((level, text),) = log()
    assert level == 'WARNING'
    assert text.splitlines() == [
        f'FLattenPVTv2: {len(model.state_dict())} tensors loaded',
        f'  resized: {", ".join(tables)}',
        '  skipped: head.weight, head.bias',
        '  not finite: stages.0.0.mlp.fc1.bias, stages.1.0.attn_norm.weight',
    ]


def test_report_of_output_norms(tmp_path, log):
    torch.save(golden.state_dict(MODELS['l2vit_t_cls']), tmp_path / 'file.pth')
    l2vit_mm.load_backbone(tmp_path / 'file.pth', 'l2vit-tiny', out_indices=(2, 3))
    assert [text.splitlines()[1:] for _, text in log()] == [
        ['  skipped: head.weight, head.bias', '  left as initialized: norm2.weight, norm2.bias']
    ]


@pytest.mark.parametrize(
    'file, into, guess',
    [
        ('flatten_swin_t', 'l2vit-tiny', 'flatten-swin-tiny'),
        ('l2vit_t_cls', 'l2vit-small', 'l2vit-tiny'),
        ('flatten_pvt_t', 'flatten-pvt-v2-b0', 'flatten-pvt-tiny'),
    ],
)
def test_a_file_of_another_kind(file, into, guess, tmp_path):
    torch.save({'model': golden.state_dict(MODELS[file])}, tmp_path / 'file.pth')
    family, _ = find_model(into)
    with pytest.raises(
        RuntimeError,
        match=rf'does not fit {family.__name__}: it looks like '
        rf'{guess}; missing: ',
    ):
        l2vit_mm.load_backbone(tmp_path / 'file.pth', into)


def test_files_of_nothing_known(tmp_path):
    torch.save({'optimizer': {'state': {}}, 'epoch': 3}, tmp_path / 'optimizer.pth')
    with pytest.raises(RuntimeError, match='checkpoint must hold weights.*, got optimizer, epoch'):
        l2vit_mm.load_backbone(tmp_path / 'optimizer.pth', 'l2vit-pico')
    state = {
        (f'x.{key}' if index % 2 else key): value
        for index, (key, value) in enumerate(L2ViT('pico').state_dict().items())
    }
    torch.save(state, tmp_path / 'renamed.pth')
    with pytest.raises(RuntimeError, match=r'fit L2ViT: missing: .*; unexpected: x\.'):
        l2vit_mm.load_backbone(tmp_path / 'renamed.pth', 'l2vit-pico')
    with pytest.raises(ValueError, match="one of .*flatten-deit.*l2vit-tiny.*, got 'tiny'"):
        l2vit_mm.load_backbone(tmp_path / 'renamed.pth', 'tiny')
    with pytest.raises(FileNotFoundError, match='absent.pth'):
        l2vit_mm.load_backbone(tmp_path / 'absent.pth', 'l2vit-pico')


def test_what_a_file_looks_like():
    for name, found in [
        ('l2vit-base', 'l2vit-base or l2vit-base-384'),  # windows are no weights
        ('flatten-pvt-large', ''),
        ('flatten-pvt-v2-b3', ''),
        ('flatten-swin-base-384', ''),
        ('flatten-cswin-small', ''),
        ('flatten-deit-tiny', ''),
    ]:
        cls, arch = find_model(name)
        with torch.device('meta'):
            state = cls(arch).state_dict()
        assert looks_like(state) == (found or name)
    assert looks_like({'layer1.0.conv1.weight': torch.zeros(64, 64, 1, 1)}) == ''
