# UPerNet with narrow heads, L2ViT-pico, from scratch, trained and tested on the same three photos
# of ADE20K: does it memorize them? (docs/verification.md)
_base_ = [
    '_base_/models/upernet.py',
    '_base_/datasets/ade20k.py',
    '_base_/schedules/shapes.py',
    '_base_/mmseg_runtime.py',
]

# About the photos' shape, and small for the sake of time; in training and in the test, without
# augmentation.
scale = (320, 240)
norm_cfg = dict(type='BN')
model = dict(
    data_preprocessor=dict(size=scale[::-1]),
    backbone=dict(type='L2ViT', arch='pico'),
    decode_head=dict(
        in_channels=[32, 64, 128, 192], channels=64, dropout_ratio=0.0, norm_cfg=norm_cfg
    ),
    auxiliary_head=dict(in_channels=128, channels=64, dropout_ratio=0.0, norm_cfg=norm_cfg),
)

train_dataloader = dict(
    # All photos in every batch, so that BatchNorm sees in training what it sees in the test.
    batch_size=3,
    num_workers=1,
    dataset=dict(
        data_root='data/ade_sample',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(type='Resize', scale=scale),
            dict(type='PackSegInputs'),
        ],
    ),
)
val_dataloader = dict(
    num_workers=1,
    dataset=dict(
        data_root='data/ade_sample',
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        # The annotation comes after Resize: it is scored at its own size.
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=scale),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ],
    ),
)
test_dataloader = val_dataloader

max_iters = 300
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=100)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=False, begin=50, end=max_iters),
]
default_hooks = dict(checkpoint=dict(interval=max_iters))
randomness = dict(seed=0)
