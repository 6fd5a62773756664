# ImageNet-1K at 224 x 224, RandAugment and random erasing. Test as the released L2ViT: short side
# 256 (timm's crop_pct of 0.875), then a center crop.
train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    drop_last=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='ImageNet',
        data_root='data/imagenet',
        split='train',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='RandomResizedCrop', scale=224, backend='pillow', interpolation='bicubic'),
            dict(type='RandomFlip', prob=0.5),
            # timm's rand-m9-mstd0.5-inc1. Colors are BGR here.
            dict(
                type='RandAugment',
                policies='timm_increasing',
                num_policies=2,
                total_level=10,
                magnitude_level=9,
                magnitude_std=0.5,
                hparams=dict(pad_val=[104, 116, 124], interpolation='bicubic'),
            ),
            dict(
                type='RandomErasing',
                erase_prob=0.25,
                mode='rand',
                min_area_ratio=0.02,
                max_area_ratio=1 / 3,
                fill_color=[103.53, 116.28, 123.675],
                fill_std=[57.375, 57.12, 58.395],
            ),
            dict(type='PackInputs'),
        ],
    ),
)
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='ImageNet',
        data_root='data/imagenet',
        split='val',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(
                type='ResizeEdge',
                scale=256,
                edge='short',
                backend='pillow',
                interpolation='bicubic',
            ),
            dict(type='CenterCrop', crop_size=224),
            dict(type='PackInputs'),
        ],
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_evaluator = val_evaluator
