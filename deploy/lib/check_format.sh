#!/usr/bin/env bash
# Fails, naming the files, if a C++ file of the tree is not formatted by .clang-format.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mapfile -t files < <(git ls-files '*.h' '*.cc' '*.cu' '*.cuh' 2>/dev/null || find . -path ./build -prune -o \( -name '*.h' -o -name '*.cc' \) -print)
[ ${#files[@]} -gt 0 ] || { echo "check_format: no C++ file found" >&2; exit 1; }
wrong=$(clang-format --dry-run --Werror "${files[@]}" 2>&1 | grep -E '^[^ ]+: error' | cut -d: -f1 | sort -u || true)
if [ -n "$wrong" ]; then
  printf 'not formatted: %s\n' $wrong >&2
  exit 1
fi
echo "check_format: ${#files[@]} files are formatted"
