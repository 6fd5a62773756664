# L2ViT-T, ImageNet-1K. Trained as released: 4,096 images an iteration (8 x 128 x 4), and an average
# of the weights is what is tested and saved. The release gives a drop path for the base model alone
# (0.3); those of tiny and small are ours.
_base_ = [
    '_base_/models/classifier.py',
    '_base_/datasets/imagenet.py',
    '_base_/schedules/imagenet_300e.py',
    '_base_/mmpretrain_runtime.py',
]

model = dict(
    backbone=dict(type='L2ViT', arch='tiny', drop_path_rate=0.1), head=dict(in_channels=768)
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, begin=0, end=20, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-6, begin=20, end=300, convert_to_iter_based=True),
]
optim_wrapper = dict(
    optimizer=dict(lr=4e-3),
    accumulative_counts=4,
    paramwise_cfg=dict(custom_keys={'.temperature': dict(decay_mult=1.0)}),
)
custom_hooks = [dict(type='EMAHook', momentum=1e-4, interval=4, update_buffers=True)]
