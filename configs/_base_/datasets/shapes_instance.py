# Generated shapes (docs/shapes.md) as COCO instances, at their own sizes of about 100 pixels.
train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    batch_sampler=dict(type='AspectRatioBatchSampler'),
    dataset=dict(
        type='ShapesDetDataset',
        data_root='data/shapes',
        ann_file='annotations/instances_training.json',
        data_prefix=dict(img='images/training/'),
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(
                type='RandomFlip',
                prob=[0.25, 0.25, 0.25],
                direction=['horizontal', 'vertical', 'diagonal'],
            ),
            dict(type='PackDetInputs'),
        ],
    ),
)
val_dataloader = dict(
    batch_size=4,
    num_workers=1,
    persistent_workers=True,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='ShapesDetDataset',
        data_root='data/shapes',
        ann_file='annotations/instances_validation.json',
        data_prefix=dict(img='images/validation/'),
        test_mode=True,
        pipeline=[
            dict(type='LoadImageFromFile'),
            # Changes no pixel, but sets the scale factor that the heads need.
            dict(type='Resize', scale_factor=1.0),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(
                type='PackDetInputs',
                meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
            ),
        ],
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(
    type='CocoMetric',
    ann_file='data/shapes/annotations/instances_validation.json',
    metric=['bbox', 'segm'],
)
test_evaluator = val_evaluator
