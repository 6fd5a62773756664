"""What tools/test.py computes of an image does not depend on how many are tested at a time."""

import pickle

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch.nn.modules.module import register_module_forward_hook

import l2vit_mm  # noqa: F401  (before any toolbox)
from l2vit_mm.backbones import L2ViT
from l2vit_mm.datasets.shapes import generate

CONFIG = 'demo_mask_rcnn_l2vit_pico_shapes.py'
pytestmark = pytest.mark.train


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    """Seven generated images to test on, no two of the same size."""
    root = tmp_path_factory.mktemp('mixed') / 'shapes'
    generate(root, num_train=1, num_val=7, seed=3)
    return root


@pytest.fixture
def run(test_tool, images, repo, tmp_path):
    """Runs the tool; gives each image's size and its part of each map of the backbone, and the
    predictions."""
    config = repo / 'configs' / CONFIG
    cfg = Config.fromfile(str(config)).model
    cfg.backbone.init_cfg = None
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg)
    model.init_weights()
    checkpoint = tmp_path / 'untrained.pth'
    torch.save(dict(state_dict=model.state_dict()), checkpoint)

    def run(batch_size, preprocessor):
        features = []

        def record(module, args, outs):
            if isinstance(module, L2ViT):
                sizes = getattr(args[0], 'valid_hw', None)
                features.extend(zip(*outs))
                seen.extend([None] * len(args[0]) if sizes is None else sizes.tolist())

        seen, out = [], tmp_path / 'out.pkl'
        hook = register_module_forward_hook(record)
        try:
            test_tool(
                [
                    str(config),
                    str(checkpoint),
                    '--work-dir',
                    str(tmp_path / 'work'),
                    '--out',
                    str(out),
                    '--cfg-options',
                    'model.test_cfg.rcnn.score_thr=0.0',
                    f'model.data_preprocessor.type={preprocessor}',
                    f'test_dataloader.batch_size={batch_size}',
                    'test_dataloader.num_workers=0',
                    'test_dataloader.persistent_workers=False',
                    f'test_dataloader.dataset.data_root={images}',
                    f'test_evaluator.ann_file={images}/annotations/instances_validation.json',
                ]
            )
        finally:
            hook.remove()
        predictions = pickle.loads(out.read_bytes())
        parts = []
        for maps, prediction in zip(features, predictions, strict=True):
            h, w = prediction['ori_shape']
            parts.append(
                [
                    values[:, : -(-h // stride), : -(-w // stride)]
                    for values, stride in zip(maps, (4, 8, 16, 32))
                ]
            )
        return seen, parts, predictions

    return run


def difference(a, b):
    return max(((x - y).abs().max() / y.std()).item() for maps in zip(a, b) for x, y in zip(*maps))


def test_batch_size_makes_no_difference_to_the_backbone(run):
    one_size, one, predictions = run(1, 'ValidRegionDetDataPreprocessor')
    sizes = [list(prediction['ori_shape']) for prediction in predictions]
    assert len({tuple(size) for size in sizes}) == 7
    four_size, four, _ = run(4, 'ValidRegionDetDataPreprocessor')
    assert one_size == four_size == sizes
    assert difference(four, one) < 1e-4
    # Padding that counts as image: what this is about.
    none, stock_one, _ = run(1, 'DetDataPreprocessor')
    _, stock_four, _ = run(4, 'DetDataPreprocessor')
    assert none == [None] * 7
    assert difference(stock_four, stock_one) > 0.1
