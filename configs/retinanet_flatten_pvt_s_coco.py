# RetinaNet, FLatten-PVT-S, COCO, 1x.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/retinanet_flatten_pvt_s_coco.py --backbone-checkpoint FILE
_base_ = 'retinanet_flatten_pvt_t_coco.py'

model = dict(backbone=dict(arch='small'))
