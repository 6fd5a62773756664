# UPerNet with narrow heads on generated shapes, from a backbone that saw shapes of another seed:
# minutes on two cores.
_base_ = [
    '_base_/models/upernet.py',
    '_base_/datasets/shapes_semantic.py',
    '_base_/schedules/shapes.py',
    '_base_/mmseg_runtime.py',
]

norm_cfg = dict(type='BN')
model = dict(
    data_preprocessor=dict(size=(112, 112)),
    backbone=dict(
        type='L2ViT',
        arch='pico',
        init_cfg=dict(type='Pretrained', checkpoint='checkpoints/l2vit_pico_shapes.pth')),
    decode_head=dict(
        in_channels=[32, 64, 128, 192], channels=48, num_classes=9, norm_cfg=norm_cfg),
    auxiliary_head=dict(in_channels=128, channels=48, num_classes=9, norm_cfg=norm_cfg))

max_iters = 1000
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=False, begin=50, end=max_iters),
]
default_hooks = dict(checkpoint=dict(interval=500, max_keep_ckpts=2))
randomness = dict(seed=0)
