#!/usr/bin/env bash
# Tries the device cuda on this machine's GPU, for which its kernels were proven without one (tests/cuda_fake): builds the
# tests of operations with the real libraries, runs them, and runs them again under compute-sanitizer's memcheck and
# racecheck where it is installed. Writes build/gpu_check.json. Needs the driver, nvcc (install_deps.sh --cuda), no network.
#   --fake   the same run on the interpreter of tests/cuda_fake instead of a GPU: tries this script
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/build.sh"

fake=0
case ${1:-} in
  --fake) fake=1 ;;
  "") ;;
  *) die "usage: deploy/gpu_check.sh [--fake]" ;;
esac

nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null) ||
  die "no nvcc: deploy/install_deps.sh --cuda brings it, into /usr/local/cuda"
if [ $fake = 1 ]; then
  gpu="fake CUDA device"
  tests="cuda_matmul_test cuda_attention_test cuda_experts_test"
else
  command -v nvidia-smi >/dev/null || die "no driver: nvidia-smi is not there (Debian: apt-get install nvidia-driver)"
  gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader | head -1)
  [ -n "$gpu" ] || die "the driver lists no GPU: nvidia-smi -L"
  tests="gpu_operations_test"
fi

mkdir -p "$SLUICE_ROOT/build"
# shellcheck disable=SC2086
build_preset release $tests

results=()
failed=0
# run NAME COMMAND...: notes whether it succeeded.
run() {
  local name=$1
  shift
  say "$name"
  if (cd "$SLUICE_ROOT" && "$@"); then
    results+=("\"$name\": \"passed\"")
  else
    results+=("\"$name\": \"failed\"")
    failed=1
  fi
}
for test in $tests; do
  run "$test" "$SLUICE_ROOT/build/release/tests/$test" --gtest_brief=1
  if [ $fake = 0 ] && command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      run "$test $tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
        "$SLUICE_ROOT/build/release/tests/$test" --gtest_brief=1
    done
  fi
done

{
  printf '{"gpu": "%s", "nvcc": "%s", "commit": "%s"' "$gpu" "$("$nvcc" --version | sed -n 's/.*release //p')" \
    "$(git -C "$SLUICE_ROOT" rev-parse HEAD 2>/dev/null)"
  printf ', %s' "${results[@]}"
  printf '}\n'
} >"$SLUICE_ROOT/build/gpu_check.json"
cat "$SLUICE_ROOT/build/gpu_check.json"
exit $failed
