# FLatten-PVTv2-B0, ImageNet-1K. Trained as FLatten-PVT.
_base_ = 'flatten_pvt_t_imagenet.py'

model = dict(backbone=dict(type='FLattenPVTv2', arch='b0'), head=dict(in_channels=256))
