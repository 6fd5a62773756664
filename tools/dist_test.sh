#!/usr/bin/env bash
# Tests on several GPUs; on a machine without a GPU, in as many processes on the CPU.
#   tools/dist_test.sh CONFIG CHECKPOINT GPUS [options of test.py]
# On several machines: see dist_train.sh.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,/^set/s/^#  *//p' "$0" >&2; exit 2; }
TOOL=test.py exec "$(dirname "$0")/dist_train.sh" "$1" "$3" "$2" "${@:4}"
