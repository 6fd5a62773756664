# RetinaNet, FLatten-PVT-T, COCO, 1x. FLatten released no detectors: one scale, optimizer and drop
# path are PVT's own.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/retinanet_flatten_pvt_t_coco.py --backbone-checkpoint FILE
_base_ = [
    '_base_/models/retinanet_fpn.py',
    '_base_/datasets/coco_detection_single_scale.py',
    '_base_/schedules/coco_1x.py',
    '_base_/mmdet_runtime.py',
]

model = dict(
    backbone=dict(type='FLattenPVT', arch='tiny', drop_path_rate=0.1),
    neck=dict(in_channels=[128, 320, 512]),
)
optim_wrapper = dict(optimizer=dict(lr=1e-4, weight_decay=1e-4))
