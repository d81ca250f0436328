#!/usr/bin/env bash
# Runs Clang's -Wthread-safety over every source that has annotated members or includes such a header. Needs a configured and
# built release preset (generated proto headers). usage: check_thread_safety.sh [JOBS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
jobs=${1:-$(nproc)}
pattern='GUARDED_BY|LOCKS_REQUIRED|LOCKS_EXCLUDED|ABSL_SCOPED_LOCKABLE|ABSL_LOCKABLE'

mapfile -t annotated < <(grep -rlE "$pattern" --include='*.h' --include='*.cc' common kernels weightd inferd cli pack daemon lab bench tests)
sources=()
for file in "${annotated[@]}"; do
  case $file in
    *.cc) sources+=("$file") ;;
    *) mapfile -t users < <(grep -rlF "#include \"$file\"" --include='*.cc' common kernels weightd inferd cli pack daemon lab)
       sources+=("${users[@]}") ;;
  esac
done
mapfile -t sources < <(printf '%s\n' "${sources[@]}" | sort -u)
[ ${#sources[@]} -gt 0 ] || { echo "check_thread_safety: no annotated source found" >&2; exit 1; }

# Include paths of the release preset for generated protos and for libraries that are no packages.
mapfile -t system < <(grep -ohE -- '-isystem [^ "]+' build/release/compile_commands.json | sort -u | tr ' ' '\n')

# A folder's sources are checked as one: their headers cost more than they do, and no name is used twice in a folder.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for source in "${sources[@]}"; do
  folder=${source%/*}
  echo "#include \"$source\"" >>"$work/${folder//\//_}.cc"
done
printf '%s\0' "$work"/*.cc |
  xargs -0 -n 1 -P "$jobs" clang++ -fsyntax-only -std=c++20 -I. "${system[@]}" -DSPDLOG_COMPILED_LIB '-DSLUICE_VERSION="0"' '-DSLUICE_CUDA_INTERFACE="0"' \
    -DSPDLOG_FMT_EXTERNAL -Wno-everything -Wthread-safety -Werror
echo "check_thread_safety: ${#sources[@]} sources are clean"
