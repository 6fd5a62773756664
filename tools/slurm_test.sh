#!/usr/bin/env bash
# Tests under Slurm.
#   tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [options of test.py]
# Environment variables: see slurm_train.sh.
set -euo pipefail
[ $# -ge 4 ] || { sed -n '2,/^set/s/^#  *//p' "$0" >&2; exit 2; }
TOOL=test.py exec "$(dirname "$0")/slurm_train.sh" "$1" "$2" "$3" '' "${@:4}"
