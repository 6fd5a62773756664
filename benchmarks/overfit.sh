#!/usr/bin/env bash
# Shows that whole models learn from real photos: from scratch, Mask R-CNN and UPerNet on L2ViT-pico
# memorize four photos of COCO and three of ADE20K (docs/verification.md): 17 minutes on one core.
# Fails if box AP50 on the training photos is below 0.9, or their pixel accuracy below 95 %.
#   benchmarks/overfit.sh DATA    DATA has coco8/ and ade_sample/; PYTHON sets the interpreter
# Results go to work_dirs/overfit_*. Both configs fix the seed.
set -euo pipefail
data=$(cd "${1:?folder with coco8/ and ade_sample/}" && pwd)
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

part() {  # CONFIG ITERATIONS METRIC BOUND FOLDER SETTINGS...: trains, tests, compares the metric
  local name=$1 iterations=$2 figure=$3 least=$4 value
  local settings=({train,val,test}_dataloader.dataset.data_root="$data/$5" "${@:6}")
  "$PYTHON" tools/train.py "configs/$name.py" --work-dir "work_dirs/$name" \
    --cfg-options "${settings[@]}"
  "$PYTHON" tools/test.py "configs/$name.py" "work_dirs/$name/iter_$iterations.pth" \
    --work-dir "work_dirs/$name" --cfg-options "${settings[@]}" 2>&1 |
    tee "work_dirs/$name/test.log"
  value=$(sed -n "s|.*$figure: \([0-9.]*\).*|\1|p" "work_dirs/$name/test.log" | tail -n 1)
  echo "== $name: $figure $value, at least $least expected, after $SECONDS s"
  awk "BEGIN { exit !(\"$value\" + 0 >= $least) }"
}

part overfit_mask_rcnn_l2vit_pico_coco8 500 coco/bbox_mAP_50 0.9 coco8 \
  {val,test}_evaluator.ann_file="$data/coco8/annotations/instances_train2017.json"
part overfit_upernet_l2vit_pico_ade3 300 aAcc 95 ade_sample
