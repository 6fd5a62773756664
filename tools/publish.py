"""Makes the file that one gives away of a trained model: its weights, under a name with their hash.

What only a run needs is left out: the optimizer's state, the log, the twin that mmengine's EMAHook
keeps (``state_dict`` has the averaged weights already).
"""
import argparse
import hashlib
import os

import safetensors.torch
import torch

from l2vit_mm.backbones.loading import backbone_part, unwrap
from l2vit_mm.compat.checkpoint import load
from l2vit_mm.engine import launch


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('checkpoint', help='checkpoint of a detector, segmenter or classifier')
    parser.add_argument('out', help='file to write, NAME.pth or NAME.safetensors; the first 8 '
                        'digits of its SHA-256 are put behind NAME')
    parser.add_argument('--backbone', action='store_true', help='only the backbone, for init_cfg')
    parser.add_argument('--half', action='store_true', help='in half precision')
    args = parser.parse_args(argv)

    name, extension = os.path.splitext(args.out)
    if extension not in ('.pth', '.safetensors'):
        raise launch.UsageError(f'out: {args.out} must end in .pth or .safetensors')
    checkpoint = load(args.checkpoint, map_location='cpu')
    try:
        state = unwrap(checkpoint)
    except RuntimeError as error:
        raise launch.UsageError(f'{args.checkpoint}: {error}') from error
    if args.backbone:
        state, _ = backbone_part(state)
        if not state:
            raise launch.UsageError(
                f"{args.checkpoint} has no parameter whose name starts with 'backbone.'")
    if args.half:
        state = {key: value.half() if value.is_floating_point() else value
                 for key, value in state.items()}
    bad = [key for key, value in state.items() if not value.isfinite().all()]
    if bad:
        raise launch.UsageError(f'{args.checkpoint} is not finite in {", ".join(bad)}')

    unnamed = f'{args.out}.tmp'
    if extension == '.safetensors':
        safetensors.torch.save_file(
            {key: value.contiguous().clone() for key, value in state.items()}, unnamed)
    elif args.backbone:
        torch.save(state, unnamed)
    else:
        # The classes are in meta, which MM's inferencers read.
        torch.save(dict(state_dict=state, meta=checkpoint.get('meta', {})), unnamed)
    with open(unnamed, 'rb') as stream:
        digest = hashlib.file_digest(stream, 'sha256').hexdigest()
    out = f'{name}-{digest[:8]}{extension}'
    os.replace(unnamed, out)
    print(f'{out}: {len(state)} tensors')


if __name__ == '__main__':
    launch.run(main)
