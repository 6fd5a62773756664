"""Takes the backbone out of a trained model, in half precision, for init_cfg."""
import argparse

import torch

from l2vit_mm.backbones.loading import backbone_part
from l2vit_mm.compat.checkpoint import load
from l2vit_mm.engine import launch


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('checkpoint', help='checkpoint of a detector, segmenter or classifier')
    parser.add_argument('out', help='file to write')
    args = parser.parse_args(argv)

    part, _ = backbone_part(load(args.checkpoint, map_location='cpu').get('state_dict', {}))
    backbone = {key: value.half() if value.is_floating_point() else value
                for key, value in part.items()}
    if not backbone:
        raise launch.UsageError(
            f"{args.checkpoint} has no parameter whose name starts with 'backbone.'")
    torch.save(backbone, args.out)
    print(f'{args.out}: {len(backbone)} tensors')


if __name__ == '__main__':
    launch.run(main)
