# RetinaNet, L2ViT-T, COCO, 1x.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/retinanet_l2vit_t_coco.py --backbone-checkpoint FILE
_base_ = [
    '_base_/models/retinanet_fpn.py',
    '_base_/datasets/coco_detection.py',
    '_base_/schedules/coco_1x.py',
    '_base_/mmdet_runtime.py',
]

model = dict(
    backbone=dict(type='L2ViT', arch='tiny', drop_path_rate=0.1),
    neck=dict(in_channels=[192, 384, 768]),
)
