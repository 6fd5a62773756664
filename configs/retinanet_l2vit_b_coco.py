# RetinaNet, L2ViT-B, COCO, 1x.
_base_ = 'retinanet_l2vit_t_coco.py'

model = dict(
    backbone=dict(arch='base', drop_path_rate=0.2), neck=dict(in_channels=[256, 512, 1024]))
