# Mask R-CNN, L2ViT-T, COCO, 3x.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/mask_rcnn_l2vit_t_coco_3x.py --backbone-checkpoint FILE
_base_ = [
    '_base_/models/mask_rcnn_fpn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/coco_3x.py',
    '_base_/mmdet_runtime.py',
]

model = dict(
    backbone=dict(type='L2ViT', arch='tiny', drop_path_rate=0.2),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
