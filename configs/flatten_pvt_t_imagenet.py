# FLatten-PVT-T, ImageNet-1K. Trained as released: 5 epochs of warming up, ten more epochs at the
# lowest learning rate.
_base_ = [
    '_base_/models/classifier.py',
    '_base_/datasets/imagenet_warped.py',
    '_base_/schedules/imagenet_300e.py',
    '_base_/mmpretrain_runtime.py',
]

model = dict(
    backbone=dict(type='FLattenPVT', arch='tiny', drop_path_rate=0.1), head=dict(in_channels=512)
)
train_cfg = dict(max_epochs=310)
param_scheduler = [
    dict(type='LinearLR', start_factor=2e-3, begin=0, end=5, convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR', eta_min_ratio=2e-2, begin=5, end=300, convert_to_iter_based=True
    ),
]
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'.core.scale': dict(decay_mult=1.0)}))
