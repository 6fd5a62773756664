"""Errors of the user: one line each, and exit status 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pickle import UnpicklingError

from l2vit_mm.checkpoint import CheckpointError

DOC = 'docs/train.md'


class UsageError(Exception):
    """Invalid input on the command line or in the config; the message is one line."""


def last_line(error: BaseException) -> str:
    """The last line of an error's message, which says what is wrong."""
    return str(error).strip().splitlines()[-1]


def run(main: Callable[[], object]) -> None:
    """Calls a tool's ``main``; errors of the user become one line on stderr and exit status 2."""
    try:
        main()
    except (UsageError, CheckpointError) as error:
        message = str(error)
    except FileNotFoundError as error:  # found during the run, e.g. one image of a data set
        message = f'{last_line(error)}; see {DOC}'
    except UnpicklingError as error:  # a checkpoint that is damaged, or not safe to load
        message = last_line(error)
    else:
        return
    print(f'{os.path.basename(sys.argv[0])}: error: {message}', file=sys.stderr)
    sys.exit(2)
