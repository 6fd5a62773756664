"""Writes the generated data set "shapes" (docs/shapes.md)."""

import argparse
import os
import sys
from functools import partial
from pathlib import Path

import cv2
from mmengine.utils import track_iter_progress

from l2vit_mm.datasets.shapes import draw_objects, generate, render


def parse_args() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument('--root', default='data/shapes', help='folder to write')
    parser.add_argument('--num-train', type=int, default=4000, help='number of training images')
    parser.add_argument('--num-val', type=int, default=100, help='number of validation images')
    parser.add_argument('--seed', type=int, default=0, help='seed of all images')
    parser.add_argument(
        '--force', action='store_true', help='replace a shapes data set with other parameters'
    )
    parser.add_argument(
        '--show-dir',
        help='also write the first 12 validation images to this folder, each '
        'beside a copy with its annotations',
    )
    return parser.parse_args()


def show(folder: Path, seed: int, num: int) -> None:
    """Writes pictures of the first validation images and their annotations.

    Args:
        folder (Path): Folder to write, made if needed.
        seed (int): Seed of the data set.
        num (int): Number of images.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(num):
        picture = draw_objects(*render(seed, index, 'validation'))
        cv2.imwrite(str(folder / f'{index + 1:08d}.png'), picture[..., ::-1])


def main() -> None:
    """Writes the data set and, if asked, pictures of it."""
    args = parse_args()
    # Not to a log file, where every step of the bar would stay.
    track = partial(track_iter_progress, file=sys.stdout) if sys.stdout.isatty() else None
    try:
        written = generate(
            args.root,
            args.num_train,
            args.num_val,
            args.seed,
            force=args.force,
            num_workers=os.cpu_count() or 1,
            track=track,
        )
        if args.show_dir:
            show(Path(args.show_dir), args.seed, min(12, args.num_val))
    except (ValueError, OSError) as error:
        sys.exit(f'error: {error}')
    print(
        f'{args.root}: {args.num_train} training and {args.num_val} validation images, '
        + ('written' if written else 'already there')
    )


if __name__ == '__main__':
    main()
