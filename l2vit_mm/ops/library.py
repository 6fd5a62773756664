"""Registration of compiled operators with torch, in the same way for each of them.

The schemas and kernels are registered in C++ (``csrc/*.cpp``). These functions add the Python side:
fake kernels (shapes and types without values), autograd, FLOP formulas and autocast. A
``registration.py`` calls them if :func:`extension.load_error` returns None.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.utils.flop_counter import register_flop_formula

_NAMESPACE = 'l2vit_mm'
# Registrations last as long as this object does.
_library = torch.library.Library(_NAMESPACE, 'FRAGMENT')


def register_operator(
    name: str,
    *,
    fake: Callable[..., Any],
    setup_context: Callable[..., None],
    backward: Callable[..., Any],
    flops: Callable[..., int],
) -> None:
    """Registers a differentiable operator.

    Args:
        name (str): of ``torch.ops.l2vit_mm``.
        fake: takes the arguments of the operator, returns empty tensors like its results.
        setup_context: ``(ctx, inputs, output)``, saves what ``backward`` needs.
        backward: ``(ctx, *gradients)``, returns a gradient or None per argument.
        flops: takes the arguments of the operator with shapes for tensors, returns the number of
            floating-point operations; 0 for pointwise operators, as in torch.
    """
    target = f'{_NAMESPACE}::{name}'
    torch.library.register_fake(target, fake, lib=_library)
    torch.library.register_autograd(target, backward, setup_context=setup_context, lib=_library)
    register_flop_formula(getattr(torch.ops.l2vit_mm, name))(flops)


def register_backward(name: str, *, fake: Callable[..., Any], flops: Callable[..., int]) -> None:
    """Registers the backward of an operator, which has no derivative itself: calling its backward
    is a NotImplementedError, where torch would return wrong second derivatives."""
    register_operator(
        name, fake=fake, setup_context=_save_nothing, backward=_no_second_derivative, flops=flops
    )


def register_autocast(name: str, function: Callable[..., Any]) -> None:
    """Registers the ``function`` that is called in place of the operator under autocast."""
    for key in ('AutocastCPU', 'AutocastCUDA'):
        _library.impl(name, function, key)


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


def _no_second_derivative(ctx: Any, *grads: Any) -> NoReturn:
    raise NotImplementedError(
        'the compiled operators of l2vit_mm have first derivatives only; '
        "backend='reference' has all"
    )
