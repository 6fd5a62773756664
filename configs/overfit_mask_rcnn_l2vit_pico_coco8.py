# Mask R-CNN with narrow heads, L2ViT-pico, from scratch, trained and tested on the same four photos
# of COCO: does it memorize them? (docs/verification.md)
_base_ = [
    '_base_/models/mask_rcnn_fpn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/shapes.py',
    '_base_/mmdet_runtime.py',
]

norm_cfg = dict(type='BN')
model = dict(
    backbone=dict(type='L2ViT', arch='pico'),
    neck=dict(in_channels=[32, 64, 128, 192], out_channels=64, norm_cfg=norm_cfg),
    rpn_head=dict(in_channels=64, feat_channels=64),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64),
        bbox_head=dict(in_channels=64, fc_out_channels=256),
        mask_roi_extractor=dict(out_channels=64),
        mask_head=dict(num_convs=2, in_channels=64, conv_out_channels=64, norm_cfg=norm_cfg),
    ),
    # There are 13 objects in all: fewer samples are enough.
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=500, max_per_img=200), rcnn=dict(sampler=dict(num=64))
    ),
    test_cfg=dict(rpn=dict(nms_pre=500, max_per_img=200)),
)

# Half of the photos' own size, in training and in the test, without augmentation.
scale = (320, 320)
train_dataloader = dict(
    # All photos in every batch, so that BatchNorm sees in training what it sees in the test.
    batch_size=4,
    num_workers=1,
    sampler=dict(type='InfiniteSampler'),
    dataset=dict(
        data_root='data/coco8',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(type='Resize', scale=scale, keep_ratio=True),
            dict(type='PackDetInputs'),
        ],
    ),
)
val_dataloader = dict(
    num_workers=1,
    dataset=dict(
        data_root='data/coco8',
        ann_file='annotations/instances_train2017.json',
        data_prefix=dict(img='train2017/'),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=scale, keep_ratio=True),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(
                type='PackDetInputs',
                meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
            ),
        ],
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file='data/coco8/annotations/instances_train2017.json')
test_evaluator = val_evaluator

max_iters = 500
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=100)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=False, begin=50, end=max_iters),
]
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=max_iters))
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
