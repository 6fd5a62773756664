# Cascade Mask R-CNN as Swin's released detectors have it: four convolutions and one linear layer in
# each box head, GIoU loss. The experiment adds `backbone` and `neck.in_channels`.
_base_ = 'mask_rcnn_fpn.py'

model = dict(
    type='CascadeRCNN',
    rpn_head=dict(loss_bbox=dict(type='SmoothL1Loss', beta=1 / 9)),
    roi_head=dict(
        type='CascadeRoIHead',
        num_stages=3,
        stage_loss_weights=[1, 0.5, 0.25],
        bbox_head=[
            dict(
                type='ConvFCBBoxHead',
                num_shared_convs=4,
                num_shared_fcs=1,
                in_channels=256,
                conv_out_channels=256,
                fc_out_channels=1024,
                num_classes=80,
                bbox_coder=dict(
                    type='DeltaXYWHBBoxCoder',
                    target_means=[0.0, 0.0, 0.0, 0.0],
                    target_stds=[xy, xy, wh, wh],
                ),
                reg_decoded_bbox=True,
                norm_cfg=dict(type='SyncBN'),
                loss_bbox=dict(type='GIoULoss', loss_weight=10.0),
            )
            for xy, wh in ((0.1, 0.2), (0.05, 0.1), (0.033, 0.067))
        ],
    ),
    train_cfg=dict(
        rpn=dict(allowed_border=0),
        rpn_proposal=dict(max_per_img=2000),
        rcnn=[
            dict(
                assigner=dict(
                    type='MaxIoUAssigner',
                    pos_iou_thr=iou,
                    neg_iou_thr=iou,
                    min_pos_iou=iou,
                    match_low_quality=False,
                ),
                sampler=dict(type='RandomSampler', num=512, pos_fraction=0.25),
                mask_size=28,
                pos_weight=-1,
            )
            for iou in (0.5, 0.6, 0.7)
        ],
    ),
)
