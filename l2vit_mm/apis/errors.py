"""A user's mistakes: one line each, and exit status 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pickle import UnpicklingError

from l2vit_mm.checkpoint import CheckpointError

DOC = 'docs/train.md'


class UsageError(Exception):
    """Bad input from the command line or the config; the text is one line for the user."""


def last_line(error: BaseException) -> str:
    """The line of an error's text that says what is wrong."""
    return str(error).strip().splitlines()[-1]


def run(main: Callable[[], object]) -> None:
    """Calls a tool's ``main``; a user's mistake becomes one line on stderr and exit status 2."""
    try:
        main()
    except (UsageError, CheckpointError) as error:
        message = str(error)
    except FileNotFoundError as error:  # found only on the way, e.g. one image of a data set
        message = f'{last_line(error)}; see {DOC}'
    except UnpicklingError as error:  # a checkpoint that is broken, or not safe to load
        message = last_line(error)
    else:
        return
    print(f'{os.path.basename(sys.argv[0])}: error: {message}', file=sys.stderr)
    sys.exit(2)
