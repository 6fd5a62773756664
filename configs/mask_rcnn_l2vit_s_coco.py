# Mask R-CNN, L2ViT-S, COCO, 1x.
_base_ = 'mask_rcnn_l2vit_t_coco.py'

model = dict(backbone=dict(arch='small'))
