import json

import cv2
import numpy as np
import pytest
from pycocotools import mask as mask_utils
from pycocotools.coco import COCO

from l2vit_mm.datasets.shapes import (
    CLASSES,
    PALETTE,
    SEG_CLASSES,
    SEG_PALETTE,
    SPLITS,
    generate,
    render,
    writer,
)

NUM = dict(training=60, validation=25)


def contents(root):
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob('*') if path.is_file()
    }


def load(root, split):
    return json.loads((root / f'annotations/instances_{split}.json').read_text())


def test_tree(root):
    assert sorted(path.name for path in root.iterdir()) == ['annotations', 'images', 'shapes.json']
    for split, number in NUM.items():
        images = sorted(path.stem for path in (root / 'images' / split).glob('*.jpg'))
        assert images == [f'{split}_{index:08d}' for index in range(1, number + 1)]
        assert images == sorted(path.stem for path in (root / 'annotations' / split).iterdir())
    assert len(PALETTE) == len(CLASSES) and len(SEG_PALETTE) == len(SEG_CLASSES)
    assert root.parent.stat().st_nlink == 3  # no temporary folder is left


@pytest.mark.parametrize('split', SPLITS)
def test_coco_file_and_png_describe_the_same_pixels(root, split):
    coco = COCO(str(root / f'annotations/instances_{split}.json'))
    assert len(coco.imgs) == NUM[split]
    assert [category['name'] for category in coco.loadCats(coco.getCatIds())] == list(CLASSES)
    assert min(coco.getCatIds()) == 1
    numbers = [annotation['id'] for annotation in load(root, split)['annotations']]
    assert len(set(numbers)) == len(numbers)
    for number, entry in coco.imgs.items():
        stem = entry['file_name'][:-4]
        image = cv2.imread(str(root / 'images' / split / entry['file_name']))
        semantic = cv2.imread(str(root / f'annotations/{split}/{stem}.png'), cv2.IMREAD_UNCHANGED)
        assert image.shape[:2] == semantic.shape == (entry['height'], entry['width'])
        assert semantic.dtype == np.uint8 and semantic.min() == 1
        expected = np.ones_like(semantic)
        for annotation in coco.imgToAnns[number]:
            mask = coco.annToMask(annotation).astype(bool)
            expected[mask] = annotation['category_id'] + 1
            ys, xs = np.nonzero(mask)
            assert annotation['bbox'] == [xs.min(), ys.min(), np.ptp(xs) + 1, np.ptp(ys) + 1]
            assert annotation['area'] == mask.sum() and annotation['iscrowd'] == 0
        assert np.array_equal(semantic, expected)


def test_files_hold_what_render_gives(root):
    image, objects = render(3, 4, 'validation')
    stored = cv2.imread(str(root / 'images/validation/validation_00000005.jpg'))[..., ::-1]
    assert np.abs(stored.astype(int) - image).mean() < 6  # JPEG
    annotations = [
        annotation
        for annotation in load(root, 'validation')['annotations']
        if annotation['image_id'] == 5
    ]
    assert [annotation['category_id'] for annotation in annotations] == [
        label + 1 for label, _ in objects
    ]
    for annotation, (_, mask) in zip(annotations, objects, strict=True):
        assert np.array_equal(mask_utils.decode(annotation['segmentation']), mask)


def test_bytes_depend_on_the_seed_and_not_on_workers_or_numbers(root, tmp_path):
    reference = contents(root)
    generate(tmp_path / 'fewer', num_train=20, num_val=3, seed=3)
    fewer = contents(tmp_path / 'fewer')
    generate(tmp_path / 'workers', num_train=20, num_val=3, seed=3, num_workers=2)
    assert contents(tmp_path / 'workers') == fewer
    pictures = {name for name in fewer if not name.endswith('.json')}
    assert len(pictures) == 46
    assert all(fewer[name] == reference[name] for name in pictures)
    generate(tmp_path / 'seed', num_train=20, num_val=3, seed=4)
    other = contents(tmp_path / 'seed')
    assert not any(fewer[name] == other[name] for name in pictures)


def test_second_call_writes_nothing(tmp_path):
    root = tmp_path / 'data' / 'shapes'
    assert generate(root, num_train=2, num_val=1)
    before = {path: path.stat().st_mtime_ns for path in root.rglob('*')}
    assert not generate(root, num_train=2, num_val=1)
    assert {path: path.stat().st_mtime_ns for path in root.rglob('*')} == before


def test_other_parameters_need_force(tmp_path):
    root = tmp_path / 'shapes'
    generate(root, num_train=2, num_val=1)
    with pytest.raises(FileExistsError, match="'seed': 1.*got .*'seed': 0.*force"):
        generate(root, num_train=2, num_val=1, seed=1)
    assert load(root, 'training')['info']['seed'] == 0
    assert generate(root, num_train=1, num_val=1, seed=1, force=True)
    assert load(root, 'training')['info']['seed'] == 1
    assert len(list((root / 'images/training').iterdir())) == 1


def test_something_else_is_never_replaced(tmp_path):
    precious = tmp_path / 'precious.txt'
    precious.write_text('thesis')
    for root in (tmp_path, precious):
        with pytest.raises(FileExistsError, match='root must be new, empty or a shapes data set'):
            generate(root, num_train=1, num_val=1, force=True)
    assert list(tmp_path.iterdir()) == [precious]


def test_failure_leaves_what_was_there(tmp_path, monkeypatch):
    root = tmp_path / 'shapes'
    generate(root, num_train=2, num_val=1)
    before = contents(root)

    def fail(*_):
        raise OSError('disk full')

    monkeypatch.setattr(writer, 'render', fail)
    with pytest.raises(OSError, match='disk full'):
        generate(root, num_train=3, num_val=1, force=True)
    assert contents(root) == before
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.parametrize(
    'argument, message',
    [
        (dict(num_train=0), 'num_train must be an integer of at least 1, got 0'),
        (dict(num_val=1.5), 'num_val must be an integer of at least 1, got 1.5'),
        (dict(seed=-1), 'seed must be an integer of at least 0, got -1'),
        (dict(num_workers=0), 'num_workers must be an integer of at least 1, got 0'),
        (dict(size=(112, 72)), r'size must be .* 48 <= minimum <= maximum, got \(112, 72\)'),
        (dict(size=(20, 72)), r'got \(20, 72\)'),
        (dict(size=72), 'size must be .* got 72'),
    ],
)
def test_bad_arguments(tmp_path, argument, message):
    with pytest.raises(ValueError, match=message):
        generate(tmp_path / 'shapes', **argument)
    assert not any(tmp_path.iterdir())
