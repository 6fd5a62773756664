# Mask R-CNN, FLatten-PVT-S, COCO, 1x.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/mask_rcnn_flatten_pvt_s_coco.py --backbone-checkpoint FILE
_base_ = 'mask_rcnn_flatten_pvt_t_coco.py'

model = dict(backbone=dict(arch='small'))
