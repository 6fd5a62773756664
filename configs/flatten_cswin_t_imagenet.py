# FLatten-CSwin-T, ImageNet-1K. Trained as released: 2,048 images an iteration (8 x 256), ten more
# epochs at the lowest learning rate, and an average of the weights is what is tested and saved.
_base_ = [
    '_base_/models/classifier.py',
    '_base_/datasets/imagenet_warped.py',
    '_base_/schedules/imagenet_300e.py',
    '_base_/mmpretrain_runtime.py',
]

model = dict(
    backbone=dict(type='FLattenCSWin', arch='tiny', drop_path_rate=0.2), head=dict(in_channels=512)
)
train_dataloader = dict(batch_size=256)
train_cfg = dict(max_epochs=310)
param_scheduler = [
    dict(type='LinearLR', start_factor=2e-3, begin=0, end=20, convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR', eta_min_ratio=2e-2, begin=20, end=300, convert_to_iter_based=True
    ),
]
optim_wrapper = dict(
    optimizer=dict(lr=2e-3), paramwise_cfg=dict(custom_keys={'.core.scale': dict(decay_mult=1.0)})
)
auto_scale_lr = dict(base_batch_size=2048)
custom_hooks = [dict(type='EMAHook', momentum=1.6e-4)]
