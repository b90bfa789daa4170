#!/usr/bin/env bash
# Runs the GPU side of the project on a machine that has a CUDA device and this checkout, without installing it.
# Usage: tests/gpu/run_on_device.sh [quick|correctness|bench|sweep|sanitize|all] [arguments of pytest or the benchmark ...]
# Assumes python3 with torch, attrs, cuda-bindings, pytest and pytest-timeout; logs and rows go to $OUT (./out).
# HUMMING_COMMIT names the code in rows where git does not know it.
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
  code=${PIPESTATUS[0]}
  [ "$code" -ne 0 ] && failed=1
  summary+=("$(printf '%-12s exit %-4s %4d s' "$name" "$code" $((SECONDS - begin)))")
}

quick() { step smoke 120 python3 -m tests.gpu.smoke; }

correctness() {
  step correctness 330 python3 -m pytest tests/gpu -q --maxfail=30 -p no:cacheprovider --timeout=240 \
    --durations=12 --junitxml="$OUT/correctness.xml" "$@"
}

bench() {
  step dense 200 python3 -m benchmarks.dense "$@"
  step launch 60 python3 -m benchmarks.launch
  step compile 60 python3 -m benchmarks.compile
}

sweep() { step sweep 540 python3 -m benchmarks.dense --sweep "$@"; }

# watch TOOL: the small smoke run under compute-sanitizer, our kernels alone where the tool can select them. Driver calls
# that fail by design are not reported: cuda-bindings asks for functions that a driver may lack, we for a parameter too many.
watch() {
  local tool=$1 option filter=()
  for option in --kernel-name --kernel-regex; do
    if [ ${#filter[@]} -eq 0 ] && compute-sanitizer --help 2>&1 | grep -q -- "$option "; then
      filter=("$option" "kns=humming_")
    fi
  done
  step "$tool" 150 compute-sanitizer --tool "$tool" --report-api-errors no "${filter[@]}" --error-exitcode 9 \
    python3 -m tests.gpu.smoke --small
  if ! grep -q 'SUMMARY' "$OUT/$tool.log" && [ ${#filter[@]} -gt 0 ]; then
    step "$tool" 150 compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 \
      python3 -m tests.gpu.smoke --small
  fi
}

sanitize() {
  python3 -m tests.gpu.smoke --small >"$OUT/sanitize-compile.log" 2>&1 # compiles outside the tool
  # Without torch's caching allocator every tensor is an allocation of its own, so that a stray access is seen.
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1
  watch memcheck
  watch racecheck
  unset PYTORCH_NO_CUDA_MEMORY_CACHING
}

if ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "needs a CUDA device, python3's torch sees none" >&2
  exit 2
fi
case $mode in
  quick) quick ;;
  correctness | bench | sweep) "$mode" "$@" ;;
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
