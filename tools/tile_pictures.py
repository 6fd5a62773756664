"""Tiles pictures of different sizes into one, each under its file name.

For the pictures that ``tools/test.py --show-dir`` writes: ground truth left, prediction right.
"""

import argparse
import sys
from pathlib import Path

import cv2
import numpy as np

CAPTION = 18  # pixels, height of a line of text
GAP = 6  # pixels, between pictures


def parse_args() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument('folder', help='folder of the pictures, searched recursively')
    parser.add_argument('out', help='file to write')
    parser.add_argument('--num', type=int, default=12, help='number of pictures, the first by name')
    parser.add_argument('--columns', type=int, default=3, help='number of pictures in a row')
    parser.add_argument('--scale', type=float, default=1, help='factor of enlargement')
    parser.add_argument('--title', help='line above the rows, such as "ground truth | prediction"')
    return parser.parse_args()


def write_caption(picture: np.ndarray, text: str) -> None:
    """Writes a line of text at the top of a picture, in place."""
    cv2.putText(
        picture, text, (GAP, CAPTION - 5), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (0, 0, 0), 1, cv2.LINE_AA
    )


def tile(pictures: list[tuple[str, np.ndarray]], columns: int, title: str | None) -> np.ndarray:
    """Tiles pictures on white; each row is as high as its highest picture.

    Args:
        pictures (list[tuple[str, np.ndarray]]): Names and pictures, uint8 BGR (H, W, 3).
        columns (int): Number of pictures in a row.
        title (str | None): Line above the rows.

    Returns:
        np.ndarray: uint8 BGR (H, W, 3).
    """
    width = max(picture.shape[1] for _, picture in pictures) + GAP
    rows = []
    for start in range(0, len(pictures), columns):
        row = pictures[start : start + columns]
        height = max(picture.shape[0] for _, picture in row) + CAPTION + GAP
        cells = np.full((columns, height, width, 3), 255, np.uint8)
        for cell, (name, picture) in zip(cells, row, strict=False):
            h, w = picture.shape[:2]
            cell[CAPTION : CAPTION + h, GAP : GAP + w] = picture
            write_caption(cell, name)
        rows.append(np.hstack(list(cells)))
    if title:
        rows.insert(0, np.full((CAPTION, columns * width, 3), 255, np.uint8))
        write_caption(rows[0], title)
    return np.vstack(rows)


def main() -> None:
    """Writes the picture."""
    args = parse_args()
    if args.num < 1 or args.columns < 1 or args.scale <= 0:
        sys.exit(
            'error: --num, --columns and --scale must be positive, got '
            f'{args.num}, {args.columns} and {args.scale}'
        )
    found = [
        path
        for path in Path(args.folder).rglob('*')
        if path.suffix.lower() in ('.jpg', '.jpeg', '.png')
    ]
    if not found:
        sys.exit(f'error: folder must hold .jpg or .png pictures, got {args.folder}')
    # A folder that two tests wrote to holds each name twice: take the newer file.
    newest = {path.name: path for path in sorted(found, key=lambda path: path.stat().st_mtime)}
    pictures = []
    for _, path in sorted(newest.items())[: args.num]:
        picture = cv2.imread(str(path))
        if picture is None:
            sys.exit(f'error: pictures must be readable, got {path}')
        pictures.append(
            (
                path.stem,
                cv2.resize(
                    picture, None, fx=args.scale, fy=args.scale, interpolation=cv2.INTER_CUBIC
                ),
            )
        )
    try:
        written = cv2.imwrite(
            args.out, tile(pictures, args.columns, args.title), [cv2.IMWRITE_JPEG_QUALITY, 80]
        )
    except cv2.error:  # an unknown file name extension
        written = False
    if not written:
        sys.exit(f'error: out must be a .jpg or .png path in a folder that exists, got {args.out}')


if __name__ == '__main__':
    main()
