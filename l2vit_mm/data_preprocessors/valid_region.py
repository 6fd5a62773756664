"""Data preprocessors that tell a backbone how large the images of a padded batch are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ValidRegionTensor(Tensor):
    """A padded batch of images that knows their sizes.

    It goes through a detector like any tensor, and the backbone reads ``valid_hw``. The sizes are
    this object's alone: nothing is kept elsewhere that another batch, model or process could see.
    What keeps an image's place keeps the sizes (``to``, ``clone``, ...), a crop
    ``x[:, :, top:bottom, left:right]``, as in sliding-window inference, has those of what it shows;
    all else gives plain tensors.

    Attributes:
        valid_hw (Tensor): (B, 2) integers on the CPU: height and width of each image in pixels.
    """

    valid_hw: Tensor

    @staticmethod
    def of(batch: Tensor, valid_hw: Tensor) -> ValidRegionTensor:
        """(B, C, H, W) images in the top left corners, and their (B, 2) sizes."""
        tensor = batch.as_subclass(ValidRegionTensor)
        tensor.valid_hw = valid_hw
        return tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (),
                           kwargs: dict | None = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        if not args or not isinstance(args[0], cls) or out is args[0]:
            return out
        if func in _KEEP_PLACES:
            return cls.of(out, args[0].valid_hw)
        if func is Tensor.__getitem__:
            valid_hw = _sizes_in_crop(args[0], args[1])
            return out if valid_hw is None else cls.of(out, valid_hw)
        return out


_KEEP_PLACES = {
    Tensor.to, Tensor.cuda, Tensor.cpu, Tensor.clone, Tensor.detach, Tensor.contiguous,
    Tensor.float, Tensor.half, Tensor.bfloat16, Tensor.double, Tensor.type, torch.clone,
}


def _sizes_in_crop(batch: ValidRegionTensor, index: Any) -> Tensor | None:
    """The sizes in batch[images, channels, rows, columns]; None unless these are plain slices."""
    index = index if isinstance(index, tuple) else (index,)
    if (len(index) > 4 or not all(isinstance(part, slice) for part in index)
            or any(part.step not in (None, 1) for part in index)):
        return None
    index = (*index, *[slice(None)] * (4 - len(index)))
    valid_hw = batch.valid_hw[index[0]]
    sizes = []
    for axis in (2, 3):
        start, stop, _ = index[axis].indices(batch.shape[axis])
        # A crop of nothing but padding counts as one pixel: nobody asks what is predicted there.
        sizes.append((valid_hw[:, axis - 2] - start).clamp(1, max(stop - start, 1)))
    return torch.stack(sizes, 1)


class ValidRegionMixin:
    """Of a toolbox's data preprocessor: keeps images apart from their padding.

    A detector's images are of different sizes, and batches are padded to the largest. With this,
    global attention, windows, convolutions and BatchNorms of the backbones here don't see the
    padding; other backbones see what they always saw. Sizes are those of the images when they are
    batched: what a ``Pad`` transform has added counts as image.

    Raises:
        ValueError: when training on images of different sizes with ``batch_augments`` other than
            ``BatchFixedSizePad``. (After others, batches of images of one size count as a whole.)
    """

    def forward(self, data: dict, training: bool = False) -> dict:
        """As the toolbox's, with ``inputs`` that know the images' sizes before batching."""
        sizes = [tuple(image.shape[-2:]) for image in data['inputs']]
        data = super().forward(data, training)  # type: ignore[misc]
        if training and not self._only_pads():
            if len(set(sizes)) > 1:
                raise ValueError('batch_augments must be BatchFixedSizePad where images differ in '
                                 'size, as after mixing or resizing a batch their sizes are not '
                                 f'known, got images of {sizes}')
            return data
        inputs = data['inputs']
        valid_hw = torch.tensor(sizes).minimum(torch.tensor(inputs.shape[-2:]))
        data['inputs'] = ValidRegionTensor.of(inputs, valid_hw)
        return data

    def _only_pads(self) -> bool:
        """Whether batches stay as they are, but for padding right and bottom."""
        augments = getattr(self, 'batch_augments', None)
        if augments is None:
            return True
        return isinstance(augments, nn.ModuleList) and all(
            type(augment).__name__ == 'BatchFixedSizePad' for augment in augments)
