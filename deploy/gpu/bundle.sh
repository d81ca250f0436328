#!/usr/bin/env bash
# Makes an archive for a rented machine with a GPU, which has neither network nor our libraries: stripped programs, the module of
# device cuda with SASS, the tests of operations, gpu_bench, the driver probe, and every shared library except libc's and the
# compiler's own. deploy/gpu/lease.sh runs it there. Needs nvcc (deploy/install_deps.sh --cuda).
# usage: bundle.sh [--out FILE] [--architectures LIST] [--prove [ROOT]]
#        bundle.sh --trim-tree | --restore-tree
#   --out FILE            the archive [build/gpu_bundle.tar.xz]
#   --architectures LIST  compute capabilities with commas between [90]; the build keeps them
#   --prove [ROOT]        also tries it in a Debian 12 that has nothing else, as root, by debootstrap; ROOT is kept for
#                         the next time [/var/tmp/sluice-gpu-bare]
#   --trim-tree           removes test data that the machine does not need from the working tree, which then is small
#                         enough to travel; --restore-tree brings it back
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib/build.sh"

most_bytes=30000000
archive=$SLUICE_ROOT/build/gpu_bundle.tar.xz
architectures=90
bare=
build=$SLUICE_ROOT/build/release
# The machine's own versions are newer, and its other programs need them.
left_out='^(libc|libm|ld-linux-x86-64|libresolv|libstdc\+\+|libgcc_s|libpthread|librt|libdl|libcuda)\.so'

trim_tree() {
  cd "$SLUICE_ROOT"
  [ -z "$(git status --porcelain -- tests/data)" ] || die "tests/data has changes: commit them first"
  git ls-files -z -- tests/data ':!tests/data/tiny/mixtral' | xargs -0 rm -f
  say "$(git ls-files -z | xargs -0 du -bc 2>/dev/null | tail -1 | cut -f1) bytes travel; afterwards: bundle.sh --restore-tree"
}

build_all() {
  mkdir -p "$SLUICE_ROOT/build"
  (cd "$SLUICE_ROOT" && cmake --preset release "-DSLUICE_CUDA_ARCHITECTURES=${architectures//,/;}" >/dev/null)
  build_preset release weightd inferd sluice sluice_cuda gpu_operations_test gpu_bench
}

# Wrappers set the library path, for our programs only and after the machine's own.
wrap() {
  local name=$1
  printf '%s\n' '#!/bin/sh' 'here=$(dirname "$(readlink -f "$0")")/..' \
    'export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$here/lib"' \
    "exec \"\$here/programs/$name\" \"\$@\"" >"$staged/bin/$name"
  chmod 755 "$staged/bin/$name"
}

copy_programs() {
  mkdir -p "$staged/bin" "$staged/programs" "$staged/lib"
  install -s "$build"/bin/{weightd,inferd,sluice} "$build/tests/gpu_operations_test" "$build/bench/gpu_bench" \
    "$staged/programs/"
  install -s "$build/bin/libsluice_cuda.so" "$staged/programs/"
  local nvcc
  nvcc=$(sed -n 's/^SLUICE_NVCC:FILEPATH=//p' "$build/CMakeCache.txt")
  "$nvcc" -std=c++17 -O2 -cudart static -gencode "arch=compute_${architectures##*,},code=sm_${architectures##*,}" \
    -o "$staged/programs/gpu_probe" "$SLUICE_ROOT/bench/cuda/gpu_probe.cu" -L"$(dirname "$nvcc")/../lib64/stubs" -lcuda
  for name in weightd inferd sluice gpu_operations_test gpu_bench gpu_probe; do wrap "$name"; done
}

copy_libraries() {
  ldd "$staged"/programs/* | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | while read -r library; do
    [[ $(basename "$library") =~ $left_out ]] || install "$(readlink -f "$library")" "$staged/lib/$(basename "$library")"
  done
  strip --strip-unneeded "$staged"/lib/*
}

pack() {
  git -C "$SLUICE_ROOT" rev-parse HEAD >"$staged/commit"
  mkdir -p "$(dirname "$archive")"
  XZ_OPT='-6 -T2' tar -C "$staged" -cJf "$archive" .
  local bytes
  bytes=$(stat -c %s "$archive")
  [ "$bytes" -le $most_bytes ] || die "$archive has $bytes bytes, more than $most_bytes"
  say "$archive: $bytes bytes, $(du -sb "$staged" | cut -f1) unpacked, $(ls "$staged/lib" | wc -l) libraries, module of" \
    "$(stat -c %s "$staged/programs/libsluice_cuda.so") bytes with SASS of $architectures"
}

unmount() { umount "$bare/proc" "$bare/dev" "$bare/sys" 2>/dev/null || true; }
inside() { chroot "$bare" env -i PATH=/usr/bin:/bin HOME=/root "$@"; }

prove() {
  command -v debootstrap >/dev/null || die "--prove needs debootstrap"
  [ -x "$bare/usr/bin/apt-get" ] || debootstrap --variant=minbase --include=python3 bookworm "$bare" >/dev/null
  say "proving in $bare"
  rm -rf "$bare/root/kit" "$bare/root/sample"
  mkdir "$bare/root/kit"
  tar -C "$bare/root/kit" -xJf "$archive"
  cp -r "$SLUICE_ROOT/deploy/sample" "$bare/root/sample"
  mount -t proc proc "$bare/proc" && mount --bind /dev "$bare/dev" && mount -t sysfs sysfs "$bare/sys"
  trap 'unmount; rm -rf "$staged"' EXIT
  inside /root/kit/bin/sluice pack /root/sample --out /root/sample.pack --bits q4 --force --quiet
  local answer said
  answer=$(inside /root/kit/bin/sluice run --pack /root/sample.pack --quiet -n 16 --temperature 0 \
    --prompt "The film is a story about a young man who") || die "no answer in the bare root"
  [ -n "$answer" ] || die "an empty answer in the bare root"
  if said=$(inside /root/kit/bin/sluice run --pack /root/sample.pack --device cuda -n 1 --prompt The 2>&1) ||
    [[ $said != *"the driver is missing"* ]]; then
    die "device cuda without a driver said: $said"
  fi
  say "device host answered: $answer"
  say "device cuda said: $(grep -m 1 "the driver is missing" <<<"$said")"
}

while [ $# -gt 0 ]; do
  case $1 in
    --out) archive=$(realpath -m "${2:?--out FILE}") && shift ;;
    --architectures) architectures=${2:?--architectures LIST} && shift ;;
    --prove)
      bare=/var/tmp/sluice-gpu-bare
      case ${2:-} in "" | --*) ;; *) bare=$(realpath -m "$2") && shift ;; esac
      ;;
    --trim-tree) trim_tree && exit ;;
    --restore-tree) git -C "$SLUICE_ROOT" checkout -- tests/data && exit ;;
    *) die "unknown argument $1; $(sed -n 's/^# usage/usage/p' "$0")" ;;
  esac
  shift
done

require_host
build_all
staged=$(mktemp -d)
trap 'rm -rf "$staged"' EXIT
copy_programs
copy_libraries
pack
[ -z "$bare" ] || prove
