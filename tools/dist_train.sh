#!/usr/bin/env bash
# Trains on several GPUs; on a machine without a GPU, in as many processes on the CPU.
#   tools/dist_train.sh CONFIG GPUS [options of train.py]
# On several machines: set NNODES, NODE_RANK, MASTER_ADDR and a PORT that is free on the first one.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,/^set/s/^#  *//p' "$0" >&2; exit 2; }
exec "${PYTHON:-python}" -m torch.distributed.run \
  --nnodes "${NNODES:-1}" --node-rank "${NODE_RANK:-0}" --nproc-per-node "$2" \
  --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${PORT:-29500}" \
  "$(dirname "$0")/${TOOL:-train.py}" "$1" --launcher pytorch "${@:3}"
