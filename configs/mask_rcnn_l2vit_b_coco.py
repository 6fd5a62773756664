# Mask R-CNN, L2ViT-B, COCO, 1x.
# Published results start from ImageNet weights (README, Published weights):
#   python tools/train.py configs/mask_rcnn_l2vit_b_coco.py --backbone-checkpoint FILE
_base_ = 'mask_rcnn_l2vit_t_coco.py'

model = dict(
    backbone=dict(arch='base', drop_path_rate=0.2), neck=dict(in_channels=[128, 256, 512, 1024])
)
