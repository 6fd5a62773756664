# UPerNet, FLatten-Swin-S, ADE20K, 512 x 512, 160k.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/upernet_flatten_swin_s_ade20k.py --backbone-checkpoint FILE
_base_ = 'upernet_flatten_swin_t_ade20k.py'

model = dict(backbone=dict(arch='small'))
