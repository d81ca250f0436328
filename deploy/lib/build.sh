# Shared by the scripts of deploy/: paths, and building a preset. Sourced, not run.

SLUICE_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
SLUICE_JOBS=${SLUICE_JOBS:-$(nproc)}

say() { printf '\n== %s\n' "$*"; }
die() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

require_host() {
  [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || die "needs Linux on x86-64; this is $(uname -s) on $(uname -m)"
  grep -qw avx2 /proc/cpuinfo || die "needs a CPU with AVX2; /proc/cpuinfo lists none"
}

# build_preset PRESET [TARGET...]: configures on first use, then builds; on failure shows the log.
build_preset() {
  local preset=$1
  shift
  say "building preset $preset ($SLUICE_JOBS jobs)${*:+: $*}"
  (cd "$SLUICE_ROOT" && cmake --preset "$preset" >"$SLUICE_ROOT/build/$preset.configure.log" 2>&1) ||
    { tail -n 30 "$SLUICE_ROOT/build/$preset.configure.log" >&2; die "configuring preset $preset failed"; }
  timeout "${SLUICE_BUILD_SECONDS:-0}" cmake --build "$SLUICE_ROOT/build/$preset" -j "$SLUICE_JOBS" ${*:+--target "$@"} && return
  [ $? -ne 124 ] || return 1
  die "building preset $preset failed (errors above)"
}
