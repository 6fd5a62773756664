"""Write the generated data set "shapes" (docs/shapes.md)."""
import argparse
import os
import sys

from l2vit_mm.datasets.shapes import generate


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--root', default='data/shapes', help='folder to write')
    parser.add_argument('--num-train', type=int, default=4000, help='training images')
    parser.add_argument('--num-val', type=int, default=100, help='validation images')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--force', action='store_true',
                        help='replace a shapes data set of other parameters')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    try:
        written = generate(args.root, args.num_train, args.num_val, args.seed, force=args.force,
                           workers=os.cpu_count() or 1)
    except (ValueError, OSError) as error:
        sys.exit(f'error: {error}')
    print(f'{args.root}: {args.num_train} training and {args.num_val} validation images, '
          + ('written' if written else 'already there'))


if __name__ == '__main__':
    main()
