"""Benchmark of training steps on batches of images of different sizes.

Compares the padded batch, the batch with valid_hw, and the images one by one; the last batch has no
padding. Prints a table; docs/batching.md explains its columns.
"""

import argparse
import json
import os
import random
from pathlib import Path

os.environ.setdefault('KINETO_LOG_LEVEL', '99')  # torch's profiler writes much to stderr

import report
import torch
from bench_ops import environment
from measure import Timer, medians, peak_memory, relative
from torch import Tensor

from l2vit_mm.backbones import L2ViT

# Heights and widths of the images in the eight-image excerpt of COCO 2017, "coco8".
COCO_SIZES = (
    (480, 640),
    (426, 640),
    (428, 640),
    (425, 640),
    (640, 481),
    (478, 640),
    (500, 381),
    (488, 640),
)
SHORT_SIDES = range(480, 801, 32)
LONG_SIDE = 1333
DIVISOR = 32  # batches are padded to multiples of this
WITHOUT_PADDING = (640, 960)

Sizes = list[tuple[int, int]]


def resized(height: int, width: int, short: int, scale: float) -> tuple[int, int]:
    """Size of an image after MM's Resize to a short side, with a long side of at most LONG_SIDE."""
    factor = scale * min(short / min(height, width), LONG_SIDE / max(height, width))
    return int(height * factor + 0.5), int(width * factor + 0.5)


def draw(count: int, batch_size: int, seed: int, scale: float) -> list[Sizes]:
    """Image sizes of batches as the detection configs draw them.

    Each image has a random short side; a batch is all portrait or all landscape
    (AspectRatioBatchSampler).
    """
    rng = random.Random(seed)
    batches = []
    for _ in range(count):
        height, width = rng.choice(COCO_SIZES)
        alike = [size for size in COCO_SIZES if (size[0] > size[1]) == (height > width)]
        batches.append(
            [resized(*rng.choice(alike), rng.choice(SHORT_SIDES), scale) for _ in range(batch_size)]
        )
    return batches


def padded(sizes: Sizes) -> tuple[int, int]:
    """Height and width of the padded batch."""
    return tuple(-(-max(axis) // DIVISOR) * DIVISOR for axis in zip(*sizes))


class Step:
    """A training step of L2ViT: forward, backward, AdamW."""

    def __init__(self, arch: str, device: torch.device, amp: torch.dtype | None) -> None:
        torch.manual_seed(0)
        self.model = L2ViT(arch, drop_path_rate=0.2).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)
        self.device, self.amp = device, amp

    def __call__(self, *batches: tuple[Tensor, Tensor | None]) -> list[Tensor]:
        """Accumulates gradients over batches, images (B, 3, h, w) with valid_hw (B, 2) or None."""
        self.optimizer.zero_grad()
        for images, valid_hw in batches:
            with torch.autocast(self.device.type, self.amp, enabled=self.amp is not None):
                outs = self.model(images, valid_hw)
            torch.autograd.backward(outs, [torch.ones_like(out) for out in outs])
        self.optimizer.step()
        return []

    def calls(self, sizes: Sizes) -> dict:
        """The three ways to make a step on images of the given sizes, by name."""
        height, width = padded(sizes)
        batch = torch.zeros(len(sizes), 3, height, width, device=self.device)
        for image, (h, w) in zip(batch, sizes):
            image[:, :h, :w].normal_()
        singles = [
            (image[None, :, :h, :w].contiguous(), None) for image, (h, w) in zip(batch, sizes)
        ]
        return {
            'padded': lambda: self((batch, None)),
            'valid': lambda: self((batch, torch.tensor(sizes))),
            'one by one': lambda: self(*singles),
        }


def measure(step: Step, sizes: Sizes, timer: Timer, rounds: int) -> dict:
    """Time and peak memory of a step in each way, and their ratios to the padded one."""
    height, width = padded(sizes)
    calls = step.calls(sizes)
    samples = timer.interleave(calls, rounds=rounds, budget=float('inf'))
    return {
        'sizes': sizes,
        'padded': (height, width),
        'area': sum(h * w for h, w in sizes) / (len(sizes) * height * width),
        'samples': samples,
        'seconds': medians(samples),
        'time': relative(samples, 'padded'),
        'peak_bytes': {name: peak_memory(call, step.device)[0] for name, call in calls.items()},
    }


def total(rows: list[dict]) -> dict:
    """Sums over all batches."""
    areas = [len(row['sizes']) * row['padded'][0] * row['padded'][1] for row in rows]

    def summed(of: str) -> dict[str, float]:
        return {name: sum(row[of][name] for row in rows) for name in rows[0][of]}

    return {
        'area': sum(row['area'] * area for row, area in zip(rows, areas)) / sum(areas),
        'seconds': summed('seconds'),
        'peak_bytes': summed('peak_bytes'),
    }


def main(argv: list[str] | None = None) -> None:
    """Runs the benchmark; None: with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--arch', default='tiny', help='architecture of L2ViT')
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu')
    parser.add_argument('--amp', choices=('float16', 'bfloat16'), help='autocast; default: none')
    parser.add_argument('--threads', type=int, help="CPU threads; default: torch's choice")
    parser.add_argument('--batches', type=int, default=8, help='number of batches')
    parser.add_argument('--batch-size', type=int, default=2, help='images per batch')
    parser.add_argument('--scale', type=float, default=1.0, help='factor of all image sizes')
    parser.add_argument('--rounds', type=int, default=5, help='samples per measurement, 3 or more')
    parser.add_argument('--seed', type=int, default=0, help='seed of the image sizes')
    parser.add_argument('--json', type=Path, help='file for all figures, including single samples')
    args = parser.parse_args(argv)

    device = torch.device(args.device)
    if args.device == 'cuda' and not torch.cuda.is_available():
        parser.error('--device cuda: torch finds no GPU')
    if args.threads:
        torch.set_num_threads(args.threads)
    figures = {'environment': environment(device), 'rows': []}
    print(report.heading(figures['environment']), flush=True)
    step = Step(args.arch, device, args.amp and getattr(torch, args.amp))
    timer = Timer(device)
    batches = draw(args.batches, args.batch_size, args.seed, args.scale)
    full = padded([tuple(round(side * args.scale) for side in WITHOUT_PADDING)])
    for sizes in [*batches, [full] * args.batch_size]:
        figures['rows'].append(measure(step, sizes, timer, args.rounds))
        print(sizes, figures['rows'][-1]['seconds'], flush=True)
    figures['total'] = total(figures['rows'][:-1])
    print('\n' + report.batches(figures))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(figures, indent=1) + '\n')


if __name__ == '__main__':
    main()
