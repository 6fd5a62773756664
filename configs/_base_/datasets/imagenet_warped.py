# ImageNet-1K as in imagenet.py, but tested as the released FLatten code does: the whole image is
# warped to 256 x 256, then a center crop.
_base_ = 'imagenet.py'

val_dataloader = _base_.val_dataloader
val_dataloader.dataset.pipeline[1] = dict(
    type='Resize', scale=(256, 256), backend='pillow', interpolation='bicubic'
)
test_dataloader = val_dataloader
