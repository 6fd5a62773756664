# UPerNet, FLatten-Swin-S, ADE20K, 512 x 512, 160k.
_base_ = 'upernet_flatten_swin_t_ade20k.py'

model = dict(backbone=dict(arch='small'))
