"""Converts the names and shapes in a checkpoint from the published ones to ours, or back.

No value changes. The written file is loaded and compared with the original: maps and, where there
are heads, logits must be the same. (Published files can also be loaded without conversion.)
"""

import argparse

from mmengine.config import DictAction

from l2vit_mm import list_models
from l2vit_mm.apis.errors import UsageError, run
from l2vit_mm.checkpoint.convert import TASKS, convert_file


def main(argv=None):
    """Runs the tool; None: with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('checkpoint', help='a published file, or one trained here')
    parser.add_argument(
        'out',
        help='file to write, NAME.pth or NAME.safetensors; the first 8 '
        'digits of its SHA-256 are appended to NAME',
    )
    parser.add_argument(
        '--to',
        choices=['ours', 'published'],
        default='ours',
        help='names to convert to (default: ours)',
    )
    parser.add_argument(
        '--arch',
        metavar='NAME',
        help='one of ' + ', '.join(list_models()) + ' (default: what the file looks like)',
    )
    parser.add_argument(
        '--task',
        choices=TASKS,
        help='what to write: a backbone, for init_cfg; '
        "mmpretrain's classifier; a detector or segmentor (default: what the file "
        'has)',
    )
    parser.add_argument(
        '--format',
        choices=['pth', 'safetensors'],
        help='format of the file to write (default: by its extension)',
    )
    parser.add_argument('--ema', action='store_true', help='take model_ema instead of model')
    parser.add_argument(
        '--backbone-options',
        nargs='+',
        action=DictAction,
        default={},
        metavar='KEY=VALUE',
        help='arguments of the backbone\'s class, for example sr_ratios="(8,4,2,1)"',
    )
    try:
        args = parser.parse_args(argv)
    except (ValueError, AssertionError) as error:  # DictAction: no '=', or unbalanced brackets
        raise UsageError(f'--backbone-options must be KEY=VALUE pairs: {error}') from error

    out = args.out
    if args.format and not out.endswith(f'.{args.format}'):
        out += f'.{args.format}'
    try:
        written = convert_file(
            args.checkpoint, out, args.to, args.arch, args.task, args.ema, **args.backbone_options
        )
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f'{args.checkpoint}: {error}') from error
    print(written)


if __name__ == '__main__':
    run(main)
