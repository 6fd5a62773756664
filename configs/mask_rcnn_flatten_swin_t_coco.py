# Mask R-CNN, FLatten-Swin-T, COCO, 1x. FLatten released no detectors: scales, optimizer and drop
# path are those of Swin's release.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/mask_rcnn_flatten_swin_t_coco.py --backbone-checkpoint FILE
_base_ = [
    '_base_/models/mask_rcnn_fpn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/coco_1x.py',
    '_base_/mmdet_runtime.py',
]

model = dict(
    backbone=dict(type='FLattenSwin', arch='tiny', drop_path_rate=0.1),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
# As Swin's: neither bias tables nor norms decay.
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys={'.bias.table': dict(decay_mult=0.0), 'norm': dict(decay_mult=0.0)}
    )
)
