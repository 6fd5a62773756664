# Mask R-CNN, L2ViT-T, COCO, 1x. The published model starts from ImageNet weights:
#   --cfg-options model.backbone.init_cfg.type=Pretrained model.backbone.init_cfg.checkpoint=FILE
_base_ = [
    '_base_/models/mask_rcnn_fpn.py',
    '_base_/datasets/coco_instance.py',
    '_base_/schedules/coco_1x.py',
    '_base_/mmdet_runtime.py',
]

model = dict(
    backbone=dict(type='L2ViT', arch='tiny', drop_path_rate=0.1),
    neck=dict(in_channels=[96, 192, 384, 768]))
