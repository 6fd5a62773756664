# RetinaNet, L2ViT-S, COCO, 1x.
_base_ = 'retinanet_l2vit_t_coco.py'

model = dict(backbone=dict(arch='small'))
