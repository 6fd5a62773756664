#!/usr/bin/env bash
# Trains under Slurm.
#   tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [options of train.py]
# Environment variables (defaults): GPUS (8), GPUS_PER_NODE (8), CPUS_PER_TASK (5), SRUN_ARGS.
set -euo pipefail
[ $# -ge 4 ] || { sed -n '2,/^set/s/^#  *//p' "$0" >&2; exit 2; }
GPUS=${GPUS:-8}
GPUS_PER_NODE=${GPUS_PER_NODE:-$((GPUS < 8 ? GPUS : 8))}
# shellcheck disable=SC2086
exec srun -p "$1" --job-name="$2" --gres="gpu:$GPUS_PER_NODE" --ntasks="$GPUS" \
  --ntasks-per-node="$GPUS_PER_NODE" --cpus-per-task="${CPUS_PER_TASK:-5}" \
  --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
  "${PYTHON:-python}" -u "$(dirname "$0")/${TOOL:-train.py}" "$3" ${4:+--work-dir "$4"} \
  --launcher slurm "${@:5}"
