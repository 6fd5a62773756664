"""Writes a file to publish of a trained model: its weights, under a name with their hash.

What only a run needs is left out: the state of the optimizer, the log, and the second model of
mmengine's EMAHook (``state_dict`` has the averaged weights already).
"""

import argparse

from l2vit_mm.apis.errors import UsageError, run
from l2vit_mm.checkpoint import load
from l2vit_mm.checkpoint.save import save
from l2vit_mm.checkpoint.state import backbone_part, unwrap


def main(argv=None):
    """Runs the tool; None: with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('checkpoint', help='checkpoint of a detector, segmentor or classifier')
    parser.add_argument(
        'out',
        help='file to write, NAME.pth or NAME.safetensors; the first 8 '
        'digits of its SHA-256 are appended to NAME',
    )
    parser.add_argument('--backbone', action='store_true', help='the backbone only, for init_cfg')
    parser.add_argument('--half', action='store_true', help='round the weights to float16')
    args = parser.parse_args(argv)

    checkpoint = load(args.checkpoint, map_location='cpu')
    try:
        state = unwrap(checkpoint)
        if args.backbone:
            state, _ = backbone_part(state)
            if not state:
                raise ValueError(
                    'checkpoint must have parameters of a backbone, got no name that '
                    "starts with 'backbone.'"
                )
        if args.half:
            state = {
                key: value.half() if value.is_floating_point() else value
                for key, value in state.items()
            }
        # The classes are in meta, which MM's inferencers read.
        content = dict(state_dict=state, meta=checkpoint.get('meta', {}))
        print(f'{save(content, args.out)}: {len(state)} tensors')
    except (RuntimeError, ValueError) as error:
        raise UsageError(f'{args.checkpoint}: {error}') from error


if __name__ == '__main__':
    run(main)
