#!/usr/bin/env bash
# Tries the device cuda on this machine's GPU, for which all of it was proven without one (tests/cuda_fake). Builds, or takes
# built programs, and runs: the tests of operations with the real libraries, alone and under compute-sanitizer's memcheck
# and racecheck where it is installed; the daemons' tests (tests/e2e/cuda/cuda_test.py) with the real module; and what is
# measured (bench/cuda/gpu_bench, `sluice bench` on packs of random weights by budget and preset). Writes build/gpu_check.json
# and docs/gpu.md. Needs the driver and nvcc (install_deps.sh --cuda), no network.
#   --programs DIR  takes the programs from DIR instead of building them; then no nvcc is needed. DIR is what
#                   --carry made on a machine like this one
#   --carry DIR     builds, copies what is needed into DIR (below 64 MiB) and runs nothing
#   --fake          the same run on the fake of tests/cuda_fake instead of a GPU, with shapes small enough for it: tries
#                   this script, and writes no page
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/build.sh"

usage="usage: deploy/gpu_check.sh [--fake | --carry DIR | --programs DIR]"
fake=0
carry=
programs=
case ${1:-} in
  --fake) fake=1 ;;
  --carry) carry=${2:?$usage} ;;
  --programs) programs=$(cd "${2:?$usage}" && pwd) || die "$2 is no folder" ;;
  "") ;;
  *) die "$usage" ;;
esac

nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null) || nvcc=
[ -n "$nvcc" ] || [ -n "$programs" ] || die "no nvcc: deploy/install_deps.sh --cuda brings it, into /usr/local/cuda"
if [ $fake = 1 ]; then
  gpu="fake CUDA device"
elif [ -z "$carry" ]; then
  command -v nvidia-smi >/dev/null || die "no driver: nvidia-smi is not there (Debian: apt-get install nvidia-driver)"
  gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader | head -1)
  [ -n "$gpu" ] || die "the driver lists no GPU: nvidia-smi -L"
fi

mkdir -p "$SLUICE_ROOT/build"
build=$SLUICE_ROOT/build/release
if [ $fake = 1 ]; then
  operations="cuda_matmul_test cuda_attention_test cuda_experts_test"
  module=$build/tests/libsluice_cuda_fake.so
  # shellcheck disable=SC2086
  build_preset release $operations sluice_cuda_fake_module gpu_bench weightd inferd sluice
else
  operations=gpu_operations_test
  module=$build/bin/libsluice_cuda.so
  [ -n "$programs" ] || build_preset release $operations sluice_cuda gpu_bench weightd inferd sluice
fi
if [ -n "$carry" ]; then
  mkdir -p "$carry/bin" "$carry/tests" "$carry/bench"
  install -s "$build/bin/weightd" "$build/bin/inferd" "$build/bin/sluice" "$carry/bin/"
  install "$module" "$carry/bin/"
  install -s "$build/tests/gpu_operations_test" "$carry/tests/"
  install -s "$build/bench/gpu_bench" "$carry/bench/"
  bytes=$(du -sb "$carry" | cut -f1)
  [ "$bytes" -lt $((64 << 20)) ] || die "$carry has $bytes bytes, more than 64 MiB"
  say "$carry has what a machine with a GPU needs beside this tree: $bytes bytes"
  exit 0
fi
if [ -n "$programs" ]; then
  build=$programs
  module=$build/bin/libsluice_cuda.so
fi
export SLUICE_CUDA_MODULE=$module

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
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

for test in $operations; do
  run "$test" "$build/tests/$test" --gtest_brief=1
  if [ $fake = 0 ] && command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      run "$test $tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$build/tests/$test" --gtest_brief=1
    done
  fi
done
run "two daemons" env SLUICE_BIN="$build/bin" python3 tests/e2e/cuda/cuda_test.py

bench=()
[ $fake = 0 ] || bench=(--tiny)
run "gpu_bench" "$build/bench/gpu_bench" "${bench[@]}" --json "$out/gpu_bench.json"

# decode SHAPE LAYERS: speed on a pack of random weights, by what of its experts the device's memory holds.
decode=()
decode_shape() {
  local pack=$out/$1.pack
  "$build/bin/sluice" synth --shape "$1" --layers "$2" --out "$pack" || return 1
  for budget in 100% 50% 25%; do
    for transport in push pull; do
      local file="$out/$1 of $2 layers, $budget of its experts, $transport.json"
      "$build/bin/sluice" bench --pack "$pack" --device cuda --device-budget $budget --transport $transport \
        -p 512 -n 64 -b 1,4 -o json >"$file" || return 1
      decode+=(--decode "$file")
    done
  done
  rm -rf "$pack"
}
if [ $fake = 0 ]; then
  run "decode and prefill, Mixtral" decode_shape mixtral-8x7b 4
  run "decode and prefill, Qwen3-30B" decode_shape qwen3-30b-a3b 8
fi

{
  printf '{"gpu": "%s", "nvcc": "%s", "commit": "%s"' "$gpu" \
    "$([ -z "$nvcc" ] || "$nvcc" --version | sed -n 's/.*release //p')" "$(git -C "$SLUICE_ROOT" rev-parse HEAD 2>/dev/null)"
  printf ', %s' "${results[@]}"
  printf '}\n'
} >"$SLUICE_ROOT/build/gpu_check.json"
cat "$SLUICE_ROOT/build/gpu_check.json"
if [ $fake = 0 ]; then
  page=(--check "$SLUICE_ROOT/build/gpu_check.json")
  [ ! -s "$out/gpu_bench.json" ] || page+=(--bench "$out/gpu_bench.json")
  "$SLUICE_ROOT/bench/cuda/gpu_page.py" "${page[@]}" "${decode[@]}" || failed=1
fi
exit $failed
