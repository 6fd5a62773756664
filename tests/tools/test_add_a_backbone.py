"""docs/add-a-backbone.md: its code passes the shared checks and trains."""

import importlib
import re

import pytest
from mmengine.registry import MODELS

from l2vit_mm import registry
from tests.backbones import checks

pytestmark = pytest.mark.once


@pytest.fixture(scope='module')
def page(tmp_path_factory):
    """The page's file, imported, and its config; afterwards nobody knows them any more."""
    from tests.tools.conftest import REPO

    backbone, config = re.findall(
        r'^```python\n(.*?)^```$', (REPO / 'docs' / 'add-a-backbone.md').read_text(), re.M | re.S
    )
    assert len(backbone.splitlines()) < 120
    folder = tmp_path_factory.mktemp('page')
    (folder / 'metaformer.py').write_text(backbone)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(registry, '_backbones', dict(registry.registered_backbones()))
        yield importlib.import_module('metaformer').MetaFormer, config
    MODELS._module_dict.pop('MetaFormer')


@pytest.mark.parametrize('check', checks.PARAMS)
def test_shared_checks(page, check):
    check(page[0])


def test_it_is_a_model(page):
    import l2vit_mm

    assert {'metaformer-pico', 'metaformer-small'} < {*l2vit_mm.list_models()}
    assert type(l2vit_mm.get_model('metaformer-pico')) is page[0]


@pytest.mark.train
@pytest.mark.slow
def test_mask_rcnn_trains(page, train, coco_files, small_mask_rcnn, repo, tmp_path):
    cls, config = page
    file = tmp_path / 'mask_rcnn_metaformer.py'
    file.write_text(config.replace("'mask_rcnn_l2vit", f"'{repo}/configs/mask_rcnn_l2vit"))
    channels = ','.join(map(str, cls.arch_zoo['pico']['channels']))
    train(
        [
            str(file),
            '--work-dir',
            str(tmp_path / 'work'),
            '--cfg-options',
            *coco_files,
            *small_mask_rcnn,
            f'model.neck.in_channels=[{channels}]',
            'train_cfg.max_epochs=1',
            'train_cfg.val_interval=2',
            'train_dataloader.dataset.pipeline.4.scales=[(96,160)]',
        ]
    )
    assert (tmp_path / 'work' / 'epoch_1.pth').exists()


@pytest.mark.train
@pytest.mark.slow
def test_upernet_trains(page, train, ade_files, small_upernet, repo, tmp_path):
    cls, _ = page
    channels = cls.arch_zoo['pico']['channels']
    file = tmp_path / 'upernet_metaformer.py'
    file.write_text(
        f"_base_ = '{repo}/configs/upernet_l2vit_t_ade20k.py'\n"
        "custom_imports = dict(imports=['l2vit_mm', 'metaformer'])\n"
        "model = dict(backbone=dict(_delete_=True, type='MetaFormer', arch='pico'))\n"
    )
    train(
        [
            str(file),
            '--work-dir',
            str(tmp_path / 'work'),
            '--cfg-options',
            *ade_files,
            *small_upernet,
            f'model.decode_head.in_channels=[{",".join(map(str, channels))}]',
            f'model.auxiliary_head.in_channels={channels[2]}',
            'train_cfg.max_iters=2',
        ]
    )
    assert (tmp_path / 'work' / 'iter_2.pth').exists()
