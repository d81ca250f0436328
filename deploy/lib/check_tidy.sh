#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over the product's sources that the branch changed relative to main, or on main relative to its
# parent. Needs a built release preset (generated proto headers). Stops after SECONDS and counts the sources not reached. usage:
# check_tidy.sh [SECONDS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
limit=${1:-110}
began=$SECONDS

command -v clang-tidy >/dev/null || { echo "check_tidy: skipped, clang-tidy is not installed"; exit 0; }
base=$(git merge-base HEAD main 2>/dev/null) || { echo "check_tidy: skipped, there is no branch main"; exit 0; }
[ "$base" != "$(git rev-parse HEAD)" ] || base=$(git rev-parse HEAD~1)
# Excludes sources for CUDA and for single instruction sets, which need other compiler options.
mapfile -t sources < <(git diff --name-only --diff-filter=d "$base" -- common daemon kernels weightd inferd pack cli lab \
                         ':!kernels/cuda' ':!kernels/cpu/kernels_*' ':!kernels/cpu/quant_avx*' | grep '\.cc$' || true)
# Include paths of the release preset for generated protos and for libraries that are no packages.
mapfile -t system < <(grep -ohE -- '-isystem [^ "]+' build/release/compile_commands.json | sort -u | tr ' ' '\n')

checked=0
wrong=0
for source in "${sources[@]}"; do
  left=$((limit - (SECONDS - began)))
  [ "$left" -gt 0 ] || break
  code=0
  timeout "$left" clang-tidy --quiet "$source" -- -std=c++20 -I. "${system[@]}" -mavx2 -mfma -mf16c -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL \
    '-DSLUICE_VERSION="0"' '-DSLUICE_CUDA_INTERFACE="0"' 2>/dev/null || code=$?
  [ "$code" -ne 124 ] || break
  checked=$((checked + 1))
  [ "$code" -eq 0 ] || wrong=$((wrong + 1))
done
echo "check_tidy: $checked of ${#sources[@]} changed sources checked, $wrong with findings"
[ "$wrong" -eq 0 ]
