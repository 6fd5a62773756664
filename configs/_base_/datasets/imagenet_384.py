# ImageNet-1K as in imagenet.py, but at 384 x 384. Test as the released L2ViT and FLatten-Swin: the
# whole image is warped to that size.
_base_ = 'imagenet.py'

train_dataloader = _base_.train_dataloader
train_dataloader.batch_size = 32
train_dataloader.dataset.pipeline[1].scale = 384
val_dataloader = _base_.val_dataloader
val_dataloader.batch_size = 32
val_dataloader.dataset.pipeline[1:3] = [
    dict(type='Resize', scale=(384, 384), backend='pillow', interpolation='bicubic')
]
test_dataloader = val_dataloader
