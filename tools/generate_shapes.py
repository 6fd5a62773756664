"""Write the generated data set "shapes" (docs/shapes.md)."""
import argparse
import os
import sys
from pathlib import Path

import cv2

from l2vit_mm.datasets.shapes import draw, generate, render


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--root', default='data/shapes', help='folder to write')
    parser.add_argument('--num-train', type=int, default=4000, help='training images')
    parser.add_argument('--num-val', type=int, default=100, help='validation images')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--force', action='store_true',
                        help='replace a shapes data set of other parameters')
    parser.add_argument('--show-dir',
                        help='also write the first 12 validation images here, beside the same '
                        'with their annotations drawn in')
    return parser.parse_args()


def show(folder: Path, seed: int, num: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(num):
        picture = draw(*render(seed, index, 'validation'))
        cv2.imwrite(str(folder / f'{index + 1:08d}.png'), picture[..., ::-1])


def main() -> None:
    args = parse_args()
    try:
        written = generate(args.root, args.num_train, args.num_val, args.seed, force=args.force,
                           workers=os.cpu_count() or 1)
        if args.show_dir:
            show(Path(args.show_dir), args.seed, min(12, args.num_val))
    except (ValueError, OSError) as error:
        sys.exit(f'error: {error}')
    print(f'{args.root}: {args.num_train} training and {args.num_val} validation images, '
          + ('written' if written else 'already there'))


if __name__ == '__main__':
    main()
