# UPerNet, L2ViT-S, ADE20K, 512 x 512, 160k.
_base_ = 'upernet_l2vit_t_ade20k.py'

model = dict(backbone=dict(arch='small'))
