# RetinaNet, L2ViT-S, COCO, 1x.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/retinanet_l2vit_s_coco.py --backbone-checkpoint FILE
_base_ = 'retinanet_l2vit_t_coco.py'

model = dict(backbone=dict(arch='small'))
