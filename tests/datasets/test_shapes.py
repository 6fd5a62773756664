import json

import cv2
import numpy as np
import pytest
from pycocotools import mask as mask_utils
from pycocotools.coco import COCO

from l2vit_mm.datasets import shapes
from l2vit_mm.datasets.shapes import (CLASSES, MAX_OBJECTS, MIN_BOX, MIN_CONTRAST, PALETTE,
                                      SEG_CLASSES, SEG_PALETTE, SPLITS, generate, render)

NUM = dict(training=60, validation=25)


@pytest.fixture(scope='module')
def rendered():
    return [render(0, index) for index in range(400)]


def contents(root):
    return {str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob('*') if path.is_file()}


def load(root, split):
    return json.loads((root / f'annotations/instances_{split}.json').read_text())


# -- pictures --


def test_render_depends_on_seed_split_and_index_alone():
    image, objects = render(5, 7)
    render(6, 8)
    again, objects_again = render(5, 7)
    assert np.array_equal(image, again)
    assert [label for label, _ in objects] == [label for label, _ in objects_again]
    for other in (render(6, 7), render(5, 8), render(5, 7, 'validation')):
        assert other[0].shape != image.shape or not np.array_equal(other[0], image)


def test_splits_share_no_image():
    images = [render(0, index, split)[0].tobytes() for split in SPLITS for index in range(100)]
    assert len(set(images)) == 200


def test_sizes_and_aspect_ratios_vary(rendered):
    sizes = np.array([image.shape[:2] for image, _ in rendered])
    assert 72 <= sizes.min(1).min() <= 74 and 110 <= sizes.min(1).max() <= 112
    assert 155 <= sizes.max() <= 160
    ratio = sizes[:, 0] / sizes[:, 1]
    assert 0.49 < ratio.min() < 0.6 and 1.7 < ratio.max() < 2.03
    assert len(set(sizes[:, 0] % 32)) == 32  # no stride divides them all
    other = np.array([render(0, index, size=(200, 224))[0].shape[:2] for index in range(20)])
    assert other.min() >= 200 and 224 < other.max() <= 320


def test_objects(rendered):
    numbers = np.bincount([len(objects) for _, objects in rendered], minlength=MAX_OBJECTS + 1)
    assert len(numbers) == MAX_OBJECTS + 1 and numbers[0] == 0 and (numbers[1:] > 30).all()
    labels = np.bincount([label for _, objects in rendered for label, _ in objects])
    assert len(labels) == len(CLASSES) and labels.min() > 0.7 * labels.mean()
    for image, objects in rendered:
        masks = np.array([mask for _, mask in objects])
        assert masks.dtype == bool and masks.shape[1:] == image.shape[:2]
        assert masks.sum(0).max() == 1  # the visible parts are disjoint
        for mask in masks:
            ys, xs = np.nonzero(mask)
            assert min(np.ptp(ys), np.ptp(xs)) + 1 >= MIN_BOX


def test_rings_have_holes_and_later_shapes_cover_earlier_ones(rendered):
    ring = CLASSES.index('ring')
    holes, fragments = 0, 0
    for _, objects in rendered:
        for label, mask in objects:
            number, _ = cv2.connectedComponents((~np.pad(mask, 1)).astype(np.uint8))
            holes += label == ring and number > 2
            fragments += cv2.connectedComponents(mask.astype(np.uint8))[0] > 2
    assert holes > 40  # the outside and at least one hole
    assert fragments > 10


def test_colour_does_not_tell_the_class(rendered):
    colours = [[] for _ in CLASSES]
    for image, objects in rendered:
        for label, mask in objects:
            colours[label].append(image[mask].mean(0))
    means = np.array([np.mean(found, 0) for found in colours])
    # Uniform colours of about 170 objects a class: the standard error is 73 / sqrt(170) = 6.
    assert np.abs(means - means.mean(0)).max() < 24


def test_masks_lie_on_what_is_painted(rendered):
    def step(image, mask):
        """The mean change of colour across the border of the mask."""
        mask = mask.astype(np.uint8)
        inside = mask & ~cv2.erode(mask, np.ones((5, 5)))
        outside = cv2.dilate(mask, np.ones((5, 5))) & ~mask
        return np.linalg.norm(image[inside > 0].mean(0) - image[outside > 0].mean(0))

    alone = [(image, objects[0][1]) for image, objects in rendered if len(objects) == 1]
    right = np.mean([step(image, mask) for image, mask in alone])
    shifted = np.mean([step(image, np.roll(mask, (8, 8), (0, 1))) for image, mask in alone])
    assert right > 70 and shifted < 0.7 * right


def test_objects_stand_out():
    rng = np.random.default_rng(0)
    for _ in range(50):
        board = rng.uniform(0, 255, (2, 3))[rng.integers(2, size=200)]
        colour = shapes._contrasting_colour(rng, board)
        assert (np.linalg.norm(board - colour, axis=1) >= MIN_CONTRAST).mean() >= 0.7


@pytest.mark.parametrize('name', CLASSES)
def test_outline_area_is_that_of_its_pixels(name):
    # MIN_VISIBLE compares the two.
    contours = [80 * points + 100 for points in shapes.OUTLINES[name]]
    area = shapes._polygon_area(contours[0]) - sum(map(shapes._polygon_area, contours[1:]))
    window, alpha = shapes._coverage(contours, 200, 200)
    assert alpha.sum() == pytest.approx(area, rel=0.02)
    ys, xs = np.nonzero(alpha)
    assert (window[0].start, window[1].start) == pytest.approx(
        np.min([points.min(0) for points in contours], 0)[::-1], abs=1.5)
    assert ys.min() <= 1 and xs.min() <= 1


def test_a_covered_shape_is_never_left_unlabelled():
    owner = np.zeros((60, 60), np.uint8)
    owner[10:40, 10:40] = 1
    assert shapes._visible(owner, [900])
    owner[10:40, 10:33] = 2
    assert not shapes._visible(owner, [900, 690])  # 7 pixels wide
    owner[:, :] = 0
    owner[10:24, 10:24] = 1
    assert not shapes._visible(owner, [900])  # 22 %


# -- files --


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
    annotations = [annotation for annotation in load(root, 'validation')['annotations']
                   if annotation['image_id'] == 5]
    assert [annotation['category_id'] for annotation in annotations] == [
        label + 1 for label, _ in objects]
    for annotation, (_, mask) in zip(annotations, objects):
        assert np.array_equal(mask_utils.decode(annotation['segmentation']), mask)


def test_bytes_depend_on_the_seed_and_not_on_workers_or_numbers(root, tmp_path):
    reference = contents(root)
    generate(tmp_path / 'fewer', num_train=20, num_val=3, seed=3)
    fewer = contents(tmp_path / 'fewer')
    generate(tmp_path / 'workers', num_train=20, num_val=3, seed=3, workers=2)
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
    with pytest.raises(FileExistsError, match="'seed': 0.*not.*'seed': 1.*force"):
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

    monkeypatch.setattr(shapes, 'render', fail)
    with pytest.raises(OSError, match='disk full'):
        generate(root, num_train=3, num_val=1, force=True)
    assert contents(root) == before
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.parametrize('argument, message', [
    (dict(num_train=0), 'num_train must be an integer of at least 1, got 0'),
    (dict(num_val=1.5), 'num_val must be an integer of at least 1, got 1.5'),
    (dict(seed=-1), 'seed must be an integer of at least 0, got -1'),
    (dict(workers=0), 'workers must be an integer of at least 1, got 0'),
    (dict(size=(112, 72)), r'size must be .* 48 <= least <= greatest, got \(112, 72\)'),
    (dict(size=(20, 72)), r'got \(20, 72\)'),
    (dict(size=72), 'size must be .* got 72'),
])
def test_bad_arguments(tmp_path, argument, message):
    with pytest.raises(ValueError, match=message):
        generate(tmp_path / 'shapes', **argument)
    assert not any(tmp_path.iterdir())


def test_render_names_an_unknown_split():
    with pytest.raises(ValueError, match="split must be one of .*, got 'test'"):
        render(0, 0, 'test')


# -- the toolboxes' own loaders --


def test_mmdet_loads_boxes_labels_and_masks(root):
    pytest.importorskip('mmdet')
    from mmdet.datasets import CocoDataset
    dataset = CocoDataset(
        data_root=str(root),
        ann_file='annotations/instances_validation.json',
        data_prefix=dict(img='images/validation/'),
        metainfo=dict(classes=CLASSES, palette=PALETTE),
        filter_cfg=dict(filter_empty_gt=True, min_size=32),
        pipeline=[dict(type='LoadImageFromFile'),
                  dict(type='mmdet.LoadAnnotations', with_bbox=True, with_mask=True)])
    assert len(dataset) == 25
    for index in range(25):
        found = dataset[index]
        _, objects = render(3, index, 'validation')
        assert found['gt_bboxes_labels'].tolist() == [label for label, _ in objects]
        assert not found['gt_ignore_flags'].any()
        masks = found['gt_masks'].masks
        assert np.array_equal(masks, [mask for _, mask in objects])
        boxes = found['gt_masks'].get_bboxes(type(found['gt_bboxes'])).tensor
        assert np.array_equal(found['gt_bboxes'].tensor, boxes)


def test_mmseg_loads_labels(root):
    pytest.importorskip('mmseg')
    from mmseg.datasets import BaseSegDataset
    dataset = BaseSegDataset(
        data_root=str(root),
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        metainfo=dict(classes=SEG_CLASSES, palette=SEG_PALETTE),
        reduce_zero_label=True,
        pipeline=[dict(type='LoadImageFromFile'), dict(type='mmseg.LoadAnnotations')])
    assert len(dataset) == 25
    for index in range(25):
        found = dataset[index]
        expected = np.zeros(found['img'].shape[:2])
        for label, mask in render(3, index, 'validation')[1]:
            expected[mask] = SEG_CLASSES.index(CLASSES[label])
        assert np.array_equal(found['gt_seg_map'], expected)
