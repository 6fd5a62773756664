# ADE20K as in ade20k.py, but tested at multiples of 32 pixels, as PVT's Semantic FPN.
_base_ = 'ade20k.py'

val_dataloader = _base_.val_dataloader
val_dataloader.dataset.pipeline.insert(2, dict(type='ResizeToMultiple', size_divisor=32))
test_dataloader = val_dataloader
