# UPerNet, L2ViT-B, ADE20K, 512 x 512, 160k.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/upernet_l2vit_b_ade20k.py --backbone-checkpoint FILE
_base_ = 'upernet_l2vit_t_ade20k.py'

model = dict(
    backbone=dict(arch='base'),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512),
)
