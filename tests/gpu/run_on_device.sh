#!/usr/bin/env bash
# Runs the GPU side of the project on a machine that has a CUDA device and this checkout, with nothing installed.
# Usage: tests/gpu/run_on_device.sh [quick|correctness|bench|sweep|sanitize|all] [arguments of the benchmark ...]
# Assumes python3 with torch, attrs, filelock, cuda-bindings, pytest and pytest-timeout; logs and rows go to $OUT (./out).
set -u -o pipefail

cd "$(dirname "$0")/../.."
mode=${1:-quick}
[ $# -gt 0 ] && shift
export OUT=${OUT:-$PWD/out}
mkdir -p "$OUT"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
sources=$PWD
for package in format compile kernels torch; do sources=$sources:$PWD/packages/humming-$package/src; done
# Peers that were fetched by hand (benchmarks/README.md); they come last, so that they replace nothing.
export PYTHONPATH=$sources:$PWD/.peers/site${PYTHONPATH:+:$PYTHONPATH}
export HUMMING_COMPILE_CACHE_DIR=${HUMMING_COMPILE_CACHE_DIR:-/tmp/humming-compile-cache}
export HUMMING_COMMIT=${HUMMING_COMMIT:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}

summary=()
failed=0

# step NAME SECONDS COMMAND...: runs one step under its own time limit; a failure is noted and does not stop the rest.
step() {
  local name=$1 limit=$2 begin=$SECONDS code
  shift 2
  echo "=== $name (at most $limit s)"
  timeout --kill-after=10 "$limit" "$@" 2>&1 | tee "$OUT/$name.log"
  code=$?
  [ "$code" -ne 0 ] && failed=1
  summary+=("$(printf '%-12s exit %-4s %4d s' "$name" "$code" $((SECONDS - begin)))")
}

quick() { step smoke 120 python3 -m tests.gpu.smoke; }

correctness() {
  step correctness 330 python3 -m pytest tests/gpu -q --maxfail=30 -p no:cacheprovider --timeout=240 \
    --durations=12 --junitxml="$OUT/correctness.xml"
}

bench() {
  step dense 200 python3 -m benchmarks.dense "$@"
  step launch 60 python3 -m benchmarks.launch
  step compile 60 python3 -m benchmarks.compile
}

sweep() { step sweep 540 python3 -m benchmarks.dense --sweep "$@"; }

sanitize() {
  # Without torch's caching allocator every tensor is an allocation of its own, so that a stray access is seen.
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1
  python3 -m tests.gpu.smoke --small >/dev/null 2>&1 # compiles outside the tool
  step memcheck 150 compute-sanitizer --tool memcheck --error-exitcode 9 python3 -m tests.gpu.smoke --small
  step racecheck 150 compute-sanitizer --tool racecheck --error-exitcode 9 python3 -m tests.gpu.smoke --small
  unset PYTORCH_NO_CUDA_MEMORY_CACHING
}

case $mode in
  quick | correctness) "$mode" ;;
  bench | sweep) "$mode" "$@" ;;
  sanitize) sanitize ;;
  all)
    quick
    correctness
    bench "$@"
    sanitize
    ;;
  *)
    echo "unknown mode '$mode': wanted quick, correctness, bench, sweep, sanitize or all" >&2
    exit 2
    ;;
esac

echo "=== $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo 'no GPU seen')"
printf '%s\n' "${summary[@]}"
exit $failed
