# UPerNet with narrow heads, L2ViT-pico, generated shapes of seed 1. Its backbone is what the short
# demos start from (docs/shapes.md has the commands).
_base_ = [
    '_base_/models/upernet.py',
    '_base_/datasets/shapes_semantic.py',
    '_base_/schedules/shapes.py',
    '_base_/mmseg_runtime.py',
]

norm_cfg = dict(type='BN')
model = dict(
    data_preprocessor=dict(size=(112, 112)),
    backbone=dict(type='L2ViT', arch='pico'),
    decode_head=dict(
        in_channels=[32, 64, 128, 192],
        channels=48,
        dropout_ratio=0.0,
        num_classes=9,
        norm_cfg=norm_cfg,
    ),
    auxiliary_head=dict(
        in_channels=128, channels=48, dropout_ratio=0.0, num_classes=9, norm_cfg=norm_cfg
    ),
)

data_root = 'data/shapes_seed1'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader

max_iters = 6000
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=1000)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=200),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=False, begin=200, end=max_iters),
]
default_hooks = dict(checkpoint=dict(interval=1000, max_keep_ckpts=2))
randomness = dict(seed=0)
