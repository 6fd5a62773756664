# UPerNet, L2ViT-S, ADE20K, 512 x 512, 160k.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/upernet_l2vit_s_ade20k.py --backbone-checkpoint FILE
_base_ = 'upernet_l2vit_t_ade20k.py'

model = dict(backbone=dict(arch='small'))
