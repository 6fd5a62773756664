"""Turns the names and shapes in a checkpoint from the published ones into ours, or back.

No value changes. What is written is loaded and compared with the file: maps and, where there are
heads, logits are the same. (Published files are also read as they are, wherever files are read.)
"""
import argparse

from mmengine.config import DictAction

from l2vit_mm import list_models
from l2vit_mm.apis.errors import UsageError, run
from l2vit_mm.checkpoint.convert import TASKS, convert_file


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('checkpoint', help='a published file, or one that was trained here')
    parser.add_argument('out', help='file to write, NAME.pth or NAME.safetensors; the first 8 '
                        'digits of its SHA-256 are put behind NAME')
    parser.add_argument('--to', choices=['ours', 'published'], default='ours',
                        help='whose names (default: ours)')
    parser.add_argument('--arch', metavar='NAME', help='one of ' + ', '.join(list_models())
                        + ' (default: what the file looks like)')
    parser.add_argument('--task', choices=TASKS, help='what to write: a backbone, for init_cfg; '
                        "mmpretrain's classifier; a detector or segmenter (default: what the file "
                        'has)')
    parser.add_argument('--format', choices=['pth', 'safetensors'],
                        help="of the file to write (default: by its name's ending)")
    parser.add_argument('--ema', action='store_true', help='take model_ema, not model')
    parser.add_argument('--backbone-options', nargs='+', action=DictAction, default={},
                        metavar='KEY=VALUE', help="arguments of the backbone's class, e.g. "
                        'sr_ratios="(8,4,2,1)"')
    try:
        args = parser.parse_args(argv)
    except (ValueError, AssertionError) as error:  # DictAction: no '=', or unbalanced brackets
        raise UsageError(f'--backbone-options takes KEY=VALUE pairs: {error}') from error

    out = args.out
    if args.format and not out.endswith(f'.{args.format}'):
        out += f'.{args.format}'
    try:
        written = convert_file(args.checkpoint, out, args.to, args.arch, args.task, args.ema,
                               **args.backbone_options)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f'{args.checkpoint}: {error}') from error
    print(written)


if __name__ == '__main__':
    run(main)
