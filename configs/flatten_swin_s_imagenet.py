# FLatten-Swin-S, ImageNet-1K.
_base_ = 'flatten_swin_t_imagenet.py'

model = dict(backbone=dict(arch='small', drop_path_rate=0.3))
