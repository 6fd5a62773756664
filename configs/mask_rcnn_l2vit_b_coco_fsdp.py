# Mask R-CNN, L2ViT-B, COCO, 1x, with weights, gradients and optimizer state shared out among the
# processes (FSDP). Published results start from ImageNet weights (README, Published weights):
#   tools/dist_train.sh configs/mask_rcnn_l2vit_b_coco_fsdp.py 8 --backbone-checkpoint FILE
_base_ = 'mask_rcnn_l2vit_b_coco.py'

custom_imports = dict(imports=['l2vit_mm', 'l2vit_mm.engine.strategies'])

runner_type = 'FlexibleRunner'  # mmengine's Runner knows no strategies
strategy = dict(
    type='ShardedStrategy',
    # Checkpoints are those of mask_rcnn_l2vit_b_coco.py, for tools/test.py on one GPU for example.
    # (By default each process writes its own shards.)
    state_dict_cfg='full',
    model_wrapper=dict(
        type='MMFullyShardedDataParallel',
        # A block's weights are gathered when it runs, and dropped after it.
        auto_wrap_policy='backbone_blocks',
        # Parameters keep their names, and what is frozen may share a unit with what is trained.
        use_orig_params=True,
    ),
)
