"""Operators with compiled CPU and CUDA kernels. Imports torch and nothing else.

Every operator is a folder with the same four files, and every file shows one step:

- ``interface.py``: the public functions. They document and check their arguments, and call either
  ``torch.ops.l2vit_mm.<name>`` or the reference, as :func:`extension.use_compiled` decides.
- ``reference.py``: the same function in plain PyTorch. It is the definition that the kernels are
  tested against, and the fallback where nothing is compiled.
- ``registration.py``: what torch needs to know about the compiled operator: fake kernels
  (``torch.compile``, ``torch.export``), autograd, FLOP formulas, autocast.
- ``__init__.py``: exports the public functions.

Shared by all of them: :mod:`checks` (of arguments), :mod:`precision` (types of sums),
:mod:`library` (boilerplate of ``torch.library``), :mod:`extension` (the compiled library).

How to add an operator ``my_op``:

1. ``my_op/reference.py`` and ``my_op/interface.py``, with ``backend='auto'`` as the last argument;
   export the function here. It works now, without anything compiled.
2. ``csrc/params.h``: a struct with the arguments of a call, and the equations. ``csrc/my_op.cpp``:
   the schemas, and the conversion of tensors to that struct. ``csrc/cpu/my_op.cpp`` and
   ``csrc/cuda/my_op.cu``: overloads of ``forward`` and ``backward`` for the struct, declared in
   ``backend.h``. CPU kernels that depend on the instruction set are in ``csrc/cpu/my_op_impl.h``
   and in the table of ``csrc/cpu/kernels.h`` and ``kernels_impl.h``. setup.py finds new sources.
3. ``my_op/registration.py``: ``register_operator`` for forward, ``register_backward`` for backward.
4. ``tests/ops``: the reference against the equation, both backends against the reference in
   float64, ``gradcheck``, ``opcheck``, FLOPs, and the CUDA kernels in the emulation.
"""

from l2vit_mm.ops.focused_feature_map import focused_feature_map
from l2vit_mm.ops.linear_attention import linear_attention, linear_attention_qkvpacked

__all__ = ['focused_feature_map', 'linear_attention', 'linear_attention_qkvpacked']
