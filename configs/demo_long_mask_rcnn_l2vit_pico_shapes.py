# Mask R-CNN with narrow heads, L2ViT-pico, generated shapes of seed 1, from scratch: an hour on
# two cores.
_base_ = [
    '_base_/models/mask_rcnn_fpn.py',
    '_base_/datasets/shapes_instance.py',
    '_base_/schedules/shapes.py',
    '_base_/mmdet_runtime.py',
]

norm_cfg = dict(type='BN')
model = dict(
    data_preprocessor=dict(pad_size_divisor=16),
    backbone=dict(type='L2ViT', arch='pico'),
    neck=dict(in_channels=[32, 64, 128, 192], out_channels=48, num_outs=4, norm_cfg=norm_cfg),
    rpn_head=dict(
        in_channels=48,
        feat_channels=48,
        # Shapes are 16 to 80 pixels, and as wide as they are high.
        anchor_generator=dict(scales=[4, 5.66], ratios=[1.0], strides=[4, 8, 16, 32]),
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(
            roi_layer=dict(sampling_ratio=1),
            out_channels=48,
            featmap_strides=[4, 8, 16],
            finest_scale=28,
        ),
        bbox_head=dict(in_channels=48, fc_out_channels=256, num_classes=8, reg_class_agnostic=True),
        mask_roi_extractor=dict(
            roi_layer=dict(sampling_ratio=1),
            out_channels=48,
            featmap_strides=[4, 8, 16],
            finest_scale=28,
        ),
        mask_head=dict(
            num_convs=2,
            in_channels=48,
            conv_out_channels=48,
            num_classes=8,
            class_agnostic=True,
            norm_cfg=norm_cfg,
        ),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=32, pos_fraction=0.375)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=100), rcnn=dict(max_per_img=50)),
)

data_root = 'data/shapes_seed1'
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{data_root}/annotations/instances_validation.json')
test_evaluator = val_evaluator

max_iters = 8000
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=1000)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=200),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=False, begin=200, end=max_iters),
]
default_hooks = dict(
    checkpoint=dict(by_epoch=False, interval=1000, max_keep_ckpts=2),
    visualization=dict(score_thr=0.5),
)
visualizer = dict(line_width=1)
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
