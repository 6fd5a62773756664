#!/usr/bin/env bash
# Builds the operators for the GPU of this machine, tests and benchmarks them: under 8 minutes.
# Needs torch, einops, nvcc, and pytest for the tests; no OpenMMLab package.
#   benchmarks/gpu_check.sh       results go to $OUT (work_dirs/gpu); PYTHON sets the interpreter
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-work_dirs/gpu}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$OUT"
failed=()

part() {  # NAME SECONDS COMMAND...: runs the command, logs its output, notes whether it failed
  local name=$1 limit=$2 start=$SECONDS status
  shift 2
  echo "== $name: $*"
  timeout --kill-after=5 "$limit" "$@" 2>&1 | tee "$OUT/$name.log"
  status=${PIPESTATUS[0]}
  [[ "$status" =~ ^(124|137)$ ]] && echo "$name: stopped after $limit seconds"
  [ "$status" -eq 0 ] || failed+=("$name")
  echo "== $name: exit status $status, $((SECONDS - start)) s"
  return "$status"
}

part build 200 env L2VIT_MM_BUILD=cuda "$PYTHON" setup.py build_ext --inplace || exit 1
part environment 20 "$PYTHON" -m l2vit_mm
if "$PYTHON" -c 'import pytest' 2>/dev/null; then
  part tests 160 "$PYTHON" -m pytest -q -m cuda tests/ops
else
  echo "tests: not run, $PYTHON has no pytest: pip install pytest hypothesis (without a" \
    "network: pip download them elsewhere, then pip install --no-index --find-links FOLDER ...)"
  failed+=(tests)
fi
plot=()
"$PYTHON" -c 'import matplotlib' 2>/dev/null && plot=(--plot "$OUT/bench_ops.png")
part bench 90 "$PYTHON" benchmarks/bench_ops.py --device cuda --json "$OUT/bench_ops.json" \
  ${plot[@]+"${plot[@]}"}

echo "== results in $OUT; failed: ${failed[*]:-none}"
[ ${#failed[@]} -eq 0 ]
