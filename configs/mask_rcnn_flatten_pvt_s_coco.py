# Mask R-CNN, FLatten-PVT-S, COCO, 1x.
_base_ = 'mask_rcnn_flatten_pvt_t_coco.py'

model = dict(backbone=dict(arch='small'))
