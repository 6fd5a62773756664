"""A batch tensor that knows the sizes of its images, and the mixin that creates it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ValidRegionTensor(Tensor):
    """A padded batch of images (B, C, H, W) that knows their sizes.

    It passes through a detector like any tensor, and the backbone reads ``valid_hw``. The sizes are
    stored in this object only: there is no state that another batch, model or process could see.
    Copies (``to``, ``clone``, ...) keep the sizes. A crop ``x[:, :, top:bottom, left:right]``, as
    in sliding-window inference, has the sizes of what it shows. All other operations return plain
    tensors.

    Attributes:
        valid_hw (Tensor): (B, 2) integers on the CPU: height and width of each image in pixels.
    """

    valid_hw: Tensor

    @staticmethod
    def of(batch: Tensor, valid_hw: Tensor) -> ValidRegionTensor:
        """From images (B, C, H, W), padded right and bottom, and their sizes (B, 2)."""
        tensor = batch.as_subclass(ValidRegionTensor)
        tensor.valid_hw = valid_hw
        return tensor

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        if not args or not isinstance(args[0], cls) or out is args[0]:
            return out
        if func in _KEEP_POSITIONS:
            return cls.of(out, args[0].valid_hw)
        if func is Tensor.__getitem__:
            valid_hw = _sizes_in_crop(args[0], args[1])
            return out if valid_hw is None else cls.of(out, valid_hw)
        return out


_KEEP_POSITIONS = {
    Tensor.to,
    Tensor.cuda,
    Tensor.cpu,
    Tensor.clone,
    Tensor.detach,
    Tensor.contiguous,
    Tensor.float,
    Tensor.half,
    Tensor.bfloat16,
    Tensor.double,
    Tensor.type,
    torch.clone,
}


def _sizes_in_crop(batch: ValidRegionTensor, index: Any) -> Tensor | None:
    """The sizes (B', 2) in batch[images, channels, rows, columns]; None if not plain slices."""
    index = index if isinstance(index, tuple) else (index,)
    if (
        len(index) > 4
        or not all(isinstance(part, slice) for part in index)
        or any(part.step not in (None, 1) for part in index)
    ):
        return None
    index = (*index, *[slice(None)] * (4 - len(index)))
    valid_hw = batch.valid_hw[index[0]]
    sizes = []
    for axis in (2, 3):
        start, stop, _ = index[axis].indices(batch.shape[axis])
        # A crop of padding only counts as one pixel: predictions for it are not used.
        sizes.append((valid_hw[:, axis - 2] - start).clamp(1, max(stop - start, 1)))
    return torch.stack(sizes, 1)


class ValidRegionMixin:
    """Mixin for a toolbox's data preprocessor that keeps images apart from their padding.

    The images of a detector differ in size, and batches are padded to the largest one. With this
    mixin, global attention, windows, convolutions and BatchNorms of the backbones here do not see
    the padding; for other backbones nothing changes. The sizes are those of the images when they
    are batched: what a ``Pad`` transform has added counts as image.

    Raises:
        ValueError: in training, if images differ in size and there are ``batch_augments`` other
            than ``BatchFixedSizePad``. (With such augments, images of one size fill their batch.)
    """

    def forward(self, data: dict, training: bool = False) -> dict:
        """As the toolbox's; ``inputs`` (B, C, H, W) become a :class:`ValidRegionTensor`."""
        sizes = [tuple(image.shape[-2:]) for image in data['inputs']]
        data = super().forward(data, training)  # type: ignore[misc]
        if training and not self._only_pads():
            if len(set(sizes)) > 1:
                raise ValueError(
                    'batch_augments must be BatchFixedSizePad for images of different '
                    'sizes, which are unknown after a batch is mixed or resized, got '
                    f'images of {sizes}'
                )
            return data
        inputs = data['inputs']
        valid_hw = torch.tensor(sizes).minimum(torch.tensor(inputs.shape[-2:]))
        data['inputs'] = ValidRegionTensor.of(inputs, valid_hw)
        return data

    def _only_pads(self) -> bool:
        """Whether ``batch_augments`` change batches by padding right and bottom only."""
        augments = getattr(self, 'batch_augments', None)
        if augments is None:
            return True
        return isinstance(augments, nn.ModuleList) and all(
            type(augment).__name__ == 'BatchFixedSizePad' for augment in augments
        )
