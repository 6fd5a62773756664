import cv2
import numpy as np
import pytest

from l2vit_mm.datasets.shapes import CLASSES, SPLITS, render
from l2vit_mm.datasets.shapes.outlines import OUTLINES, contour_area, coverage
from l2vit_mm.datasets.shapes.renderer import (
    MAX_OBJECTS,
    MIN_BOX,
    MIN_CONTRAST,
    _contrasting_color,
    _visible,
)


@pytest.fixture(scope='module')
def rendered():
    return [render(0, index) for index in range(400)]


def test_render_depends_on_seed_split_and_index_alone():
    image, objects = render(5, 7)
    render(6, 8)
    again, objects_again = render(5, 7)
    assert np.array_equal(image, again)
    assert [label for label, _ in objects] == [label for label, _ in objects_again]
    for other in (render(6, 7), render(5, 8), render(5, 7, 'validation')):
        assert other[0].shape != image.shape or not np.array_equal(other[0], image)


# What the pixels of writer.VERSION 1 are. Where they change, the version must be raised.
@pytest.mark.parametrize(
    'arguments, shape, color, objects',
    [
        ((0, 0), (106, 128, 3), (17.407, 220.51, 210.97), [(4, 617), (4, 944)]),
        ((0, 1), (142, 108, 3), (41.488, 56.395, 55.229), [(5, 2436)]),
        (
            (7, 123, 'validation'),
            (91, 128, 3),
            (159.926, 223.738, 143.225),
            [(3, 301), (2, 412), (3, 838), (6, 567), (5, 579)],
        ),
    ],
)
def test_pixels_of_this_version(arguments, shape, color, objects):
    image, found = render(*arguments)
    assert image.shape == shape
    # Another processor may round a few pixels differently.
    assert image.mean((0, 1)) == pytest.approx(color, abs=0.01)
    assert [(label, mask.sum()) for label, mask in found] == objects


def test_splits_have_no_image_in_common():
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


def test_color_does_not_tell_the_class(rendered):
    colors = [[] for _ in CLASSES]
    for image, objects in rendered:
        for label, mask in objects:
            colors[label].append(image[mask].mean(0))
    means = np.array([np.mean(found, 0) for found in colors])
    # Uniform colors of about 170 objects per class: the standard error is 73 / sqrt(170) = 6.
    assert np.abs(means - means.mean(0)).max() < 24


def test_masks_lie_on_what_is_painted(rendered):
    def step(image, mask):
        """The mean change of color across the border of the mask."""
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
        color = _contrasting_color(rng, board)
        assert (np.linalg.norm(board - color, axis=1) >= MIN_CONTRAST).mean() >= 0.7


@pytest.mark.parametrize('name', CLASSES)
def test_outline_area_is_that_of_its_pixels(name):
    # MIN_VISIBLE compares the two.
    contours = [80 * points + 100 for points in OUTLINES[name]]
    area = contour_area(contours)
    window, alpha = coverage(contours, 200, 200)
    assert alpha.sum() == pytest.approx(area, rel=0.02)
    ys, xs = np.nonzero(alpha)
    assert (window[0].start, window[1].start) == pytest.approx(
        np.min([points.min(0) for points in contours], 0)[::-1], abs=1.5
    )
    assert ys.min() <= 1 and xs.min() <= 1


def test_a_covered_shape_is_never_left_unlabelled():
    owner = np.zeros((60, 60), np.uint8)
    owner[10:40, 10:40] = 1
    assert _visible(owner, [900])
    owner[10:40, 10:33] = 2
    assert not _visible(owner, [900, 690])  # 7 pixels wide
    owner[:, :] = 0
    owner[10:24, 10:24] = 1
    assert not _visible(owner, [900])  # 22 %


def test_render_names_an_unknown_split():
    with pytest.raises(ValueError, match="split must be one of .*, got 'test'"):
        render(0, 0, 'test')
