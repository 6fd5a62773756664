"""`python -m l2vit_mm.compat install|uninstall|status`: see docs/compat.md."""

import argparse
import importlib.util
import os
import sys

from l2vit_mm.compat import mmcv_ext_file

_MARK = '# Written by `python -m l2vit_mm.compat install`; `uninstall` removes it.\n'
_EXT = (
    _MARK
    + """\
from l2vit_mm.compat.mmcv_ops import *  # noqa: F401, F403
from l2vit_mm.compat.mmcv_ops import __getattr__  # noqa: F401
"""
)


def main() -> str | None:
    """Runs the command; returns the error message, if any."""
    parser = argparse.ArgumentParser(
        prog='python -m l2vit_mm.compat',
        description='If the installed mmcv has no compiled operators, add a module with those of '
        'torchvision to it: for tools that import mmdet before l2vit_mm.',
    )
    parser.add_argument(
        'command',
        choices=['install', 'uninstall', 'status'],
        help='add the module, remove it, or print which operators mmcv has',
    )
    command = parser.parse_args().command

    mmcv = importlib.util.find_spec('mmcv')
    if mmcv is None:
        return 'mmcv is not installed in this Python environment'
    file = mmcv_ext_file(mmcv)
    ours = file is not None and is_ours(file)

    if command == 'status':
        print(
            f'mmcv._ext: none (import l2vit_mm first, or install one) in {mmcv.origin}'
            if file is None
            else f'mmcv._ext: {"torchvision" if ours else "compiled"}, {file}'
        )
    elif file is not None and not ours:
        return f'nothing changed: this mmcv has operators of its own, {file}'
    elif command == 'install':
        file = os.path.join(os.path.dirname(str(mmcv.origin)), '_ext.py')
        with open(file, 'w', encoding='utf-8') as stream:
            stream.write(_EXT)
        print(f'wrote {file}')
    elif file is not None:
        os.remove(file)
        print(f'removed {file}')
    else:
        print('nothing to remove')
    return None


def is_ours(file: str) -> bool:
    """Whether ``install`` has written this ``mmcv._ext``."""
    with open(file, 'rb') as stream:
        return stream.readline() == _MARK.encode()


if __name__ == '__main__':
    try:
        sys.exit(main())
    except OSError as error:  # a read-only environment
        sys.exit(f'{error.strerror}: {error.filename}')
