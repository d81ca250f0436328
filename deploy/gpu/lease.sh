#!/usr/bin/env bash
# Tests device cuda on a rented GPU, after all tests without one (tests/cuda_fake): unpacks bundle.sh's archive and runs stages
# one after another, each within its time limit; a failed stage does not stop the next. After each stage its log and figures are
# in $OUT [build/gpu], at most 8 files, so that an interrupted run keeps its results. Needs the driver and python3 ($PYTHON) with
# numpy, no network; uses sanitizers and ncu if they are installed.
# usage: lease.sh [--bundle FILE | --fake] [--only STAGES] [--seconds N] [--list]
#   --bundle FILE   the archive [build/gpu_bundle.tar.xz]
#   --fake          the programs of build/release on the fake of tests/cuda_fake, with shapes small enough for it: tries
#                   this script; the times mean nothing
#   --only STAGES   names with commas between; first, second: the stages of a first and of a second rental [first]
#   --seconds N     in all: a stage gets what is left at most, and none begins with less than 5 left [540]
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
die() { echo "lease.sh: $*" >&2 && exit 1; }

# NAME SECONDS: limits are about twice the time expected on an H100 (not confirmed on one).
first="machine:40 probe:50 operations:90 kernels:90 answer:60 qwen:60 transports:60 daemons:90"
second="first_token:30 ncu:60 mixtral:90 presets:90 qwen_whole:150 sanitizers:70 kill:40"
skipped=77

# ---------------------------------------------------------------- stages: run with `set -e`, in $work, by name

stage_machine() {
  uname -r
  [ "$fake" = 1 ] || nvidia-smi -q | head -60
  free -g
  df -h .
  grep -E 'MemTotal|MemAvailable' /proc/meminfo
  ! LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$programs/../lib" ldd "$programs"/* 2>/dev/null |
    grep 'not found' | grep -v "${without_driver:-^$}" || return 1
  # Some machines' memory grows only as it is touched, and weightd's budget follows from the available memory.
  [ "$fake" = 1 ] || timeout 15 python3 -c 'memory = [bytearray(b"\1") * (1 << 30) for _ in range(32)]' || true
  grep MemAvailable /proc/meminfo
}

stage_probe() {
  [ "$fake" = 0 ] || return $skipped
  "$bin/gpu_probe"
}

# Goldens are found relative to the tree's root.
stage_operations() {
  cd "$root"
  if [ "$fake" = 1 ]; then
    "$bin/../tests/cuda_matmul_test" --gtest_brief=1 --gtest_filter='*RouterTest*' --gtest_output="json:$OUT/operations.json"
  else
    "$bin/gpu_operations_test" --gtest_brief=1 --gtest_output="json:$OUT/operations.json"
  fi
}

# `overlap` first: how far one process' copies and another's kernels slow each other down.
stage_kernels() {
  local failed=0
  for case in overlap copies products expert layers; do
    timeout -k 5 $((fake ? 75 : 25)) "$bench" ${tiny:+--tiny} $case --json "$work/$case.json" &&
      "$here/results.py" add "$OUT/gpu_bench.json" "$case" "$work/$case.json" || failed=1
  done
  return $failed
}

answer_of() { "$bin/sluice" run --pack "$pack" --quiet -n "$tokens" --temperature 0 --ignore-eos "${prompt[@]}" "$@"; }

# Compares tokens with device host's, over both transports and three budgets.
stage_answer() {
  local host told failed=0
  host=$(answer_of)
  echo "host: $host"
  for transport in push pull; do
    for budget in $budgets; do
      told=$(answer_of --device cuda --device-budget $budget --transport $transport) || failed=1
      echo "$transport $budget: $told"
      [ "$told" = "$host" ] || failed=1
    done
  done
  cat "$SLUICE_RUNTIME_DIR"/*.log
  return $failed
}

# synth_pack SHAPE LAYERS: makes random weights of the shape unless they exist; on the fake the tiny pack.
synth_pack() {
  model=$work/$1-$2.pack
  if [ "$fake" = 1 ]; then
    model=$pack
  elif [ ! -d "$model" ]; then
    "$bin/sluice" synth --shape "$1" --layers "$2" --bits q4 --out "$model" --quiet
  fi
}

# measure NAME OPTIONS...: runs `sluice bench` on $model.
measure() {
  local name=$1 lengths=(-p 512 -n 64)
  shift
  [ "$fake" = 0 ] || lengths=(-p 8 -n 8 --context 64 --parallel 1)
  "$bin/sluice" bench --pack "$model" --device cuda "${lengths[@]}" -b 1 -r 2 --no-warmup -o json "$@" >"$work/bench.json" &&
    "$here/results.py" add "$OUT/decode.json" "$name" "$work/bench.json"
}

stage_qwen() {
  synth_pack qwen3-30b-a3b 8
  measure "Qwen3-30B, 8 of 48 layers, all on the device" --device-budget 100%
}

stage_transports() {
  synth_pack qwen3-30b-a3b 8
  for transport in push pull; do
    measure "Qwen3-30B, 8 of 48 layers, half on the device, $transport" --device-budget 50% --transport $transport
  done
}

stage_daemons() {
  local tests=()
  [ "$fake" = 0 ] || tests=(HandleTest.test_the_log_says_by_which_handle)
  SLUICE_BIN=$bin "${PYTHON:-python3}" "$root/tests/e2e/cuda/cuda_test.py" "${tests[@]}"
}

# A first start, as after an installation: without kernels that the driver has compiled before.
stage_first_token() {
  export CUDA_CACHE_DISABLE=1
  time tokens=1 answer_of --device cuda
}

stage_ncu() {
  command -v ncu >/dev/null && [ "$fake" = 0 ] || return $skipped
  ncu --target-processes all --clock-control none --graph-profiling node --launch-skip 600 --launch-count 40 --csv \
    --metrics gpu__time_duration.sum,dram__bytes_read.sum,launch__registers_per_thread,smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio \
    --log-file "$OUT/ncu.csv" "$bin/sluice" run --pack "$pack" --quiet -n 64 --temperature 0 --ignore-eos "${prompt[@]}" \
    --device cuda --device-budget 100%
}

stage_mixtral() {
  synth_pack mixtral-8x7b 4
  for budget in $budgets; do
    measure "Mixtral, 4 of 32 layers, $budget on the device" --device-budget $budget
  done
}

# Presets that need no profile: a pack of random weights has no text for calibration.
stage_presets() {
  synth_pack qwen3-30b-a3b 8
  local failed=0
  for preset in $presets; do
    measure "Qwen3-30B, 8 of 48 layers, half on the device, $preset" --device-budget 50% --preset $preset || failed=1
  done
  return $failed
}

stage_qwen_whole() {
  synth_pack qwen3-30b-a3b 48
  for budget in $budgets; do
    measure "Qwen3-30B whole, $budget on the device" --device-budget $budget
  done
}

# API errors that the code handles are not reported: a graph that cannot be updated, memory that cannot be locked.
stage_sanitizers() {
  command -v compute-sanitizer >/dev/null && [ "$fake" = 0 ] || return $skipped
  local failed=0
  cd "$root"
  for tool in memcheck racecheck; do
    timeout -k 5 30 compute-sanitizer --tool $tool --report-api-errors no --error-exitcode 1 "$bin/gpu_operations_test" \
      --gtest_brief=1 --gtest_filter='*Moe*:*Attention*Bit*' || failed=1
  done
  return $failed
}

used() { [ "$fake" = 1 ] || nvidia-smi --query-gpu=memory.used --format=csv,noheader; }

# kill_one DAEMON: kills it while answers are generated.
kill_one() {
  (until [ -e "$work/killed-$1" ]; do answer_of "${kept[@]}" >/dev/null 2>&1 || true; done) &
  sleep 2
  local killed
  killed=$(daemon_of "$1")
  kill -9 "$killed"
  echo "$1 $killed was killed; $(used)"
  touch "$work/killed-$1"
  wait $!
}

# Checks that a daemon killed under load is restarted, and that its memory is released.
stage_kill() {
  local host kept=(--device cuda --device-budget 50% --keep 1m) failed=0
  echo "before: $(used)"
  host=$(answer_of)
  [ "$(answer_of "${kept[@]}")" = "$host" ]
  for daemon in inferd weightd; do
    kill_one $daemon || failed=1
    [ "$(answer_of "${kept[@]}")" = "$host" ] || failed=1
  done
  kill "$(daemon_of sluice)"
  sleep 2
  echo "after: $(used)"
  return $failed
}

# daemon_of NAME: prints the process id of this stage's daemon of that name.
daemon_of() {
  local file
  for file in /proc/[0-9]*/cmdline; do
    if { tr '\0' ' ' <"$file" | grep -qE "^[^ ]*$1 .*$SLUICE_RUNTIME_DIR"; } 2>/dev/null; then
      basename "$(dirname "$file")"
      return
    fi
  done
  return 1
}

# ---------------------------------------------------------------- the run

if [ "${1:-}" = --stage ]; then
  set -e
  export SLUICE_RUNTIME_DIR=$work/run-$2
  mkdir -p "$SLUICE_RUNTIME_DIR"
  cd "$work"
  read -ra prompt <<<"$prompt_words"
  [ "$fake" = 1 ] || prompt=(--prompt "$prompt_words")
  "stage_$2"
  exit
fi

export fake=0 OUT=${OUT:-$root/build/gpu}
bundle=$root/build/gpu_bundle.tar.xz
wanted=first
seconds=540
while [ $# -gt 0 ]; do
  case $1 in
    --fake) fake=1 ;;
    --bundle) bundle=$(realpath "${2:?--bundle FILE}") && shift ;;
    --only) wanted=${2:?--only STAGES} && shift ;;
    --seconds) seconds=${2:?--seconds N} && shift ;;
    --list) printf '%s\n' "first: $first" "second: $second" && exit ;;
    *) die "unknown argument $1; $(sed -n 's/^# usage/usage/p' "$0")" ;;
  esac
  shift
done

chosen=
for name in ${wanted//,/ }; do
  case $name in
    first) chosen+=" $first" ;;
    second) chosen+=" $second" ;;
    *) chosen+=" $(grep -oE "\b$name:[0-9]+" <<<"$first $second")" || die "no stage $name; lease.sh --list" ;;
  esac
done
read -ra stages <<<"$chosen"

began=$SECONDS
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
export work pack programs bin bench module tiny tokens prompt_words here root budgets presets
work=$(mktemp -d "${TMPDIR:-/tmp}/lease.XXXXXX")
pack=$work/sample.pack
cleanup() {
  [ -z "${watch:-}" ] || kill "$watch" 2>/dev/null
  rm -rf "$work"
}
trap cleanup EXIT

if [ $fake = 1 ]; then
  bin=$root/build/release/bin programs=$bin bench=$root/build/release/bench/gpu_bench tiny=1 tokens=6
  budgets=50% presets=importance  # one of each, since the figures of the fake mean nothing
  export without_driver=libcuda
  export SLUICE_CUDA_MODULE=$root/build/release/tests/libsluice_cuda_fake.so
  model=$root/tests/data/tiny/mixtral prompt_words="--token-ids 4,5,6,7,8 --context 256 --parallel 1"
  gpu="fake CUDA device" driver=none commit=$(git -C "$root" rev-parse HEAD 2>/dev/null)
else
  command -v nvidia-smi >/dev/null || die "no driver: nvidia-smi is not there"
  tar -C "$work" -xJf "$bundle" || die "$bundle cannot be unpacked"
  bin=$work/bin programs=$work/programs bench=$bin/gpu_bench tiny='' tokens=48
  budgets="100% 50% 25%" presets="importance layerwise ondemand"
  export SLUICE_CUDA_MODULE=$programs/libsluice_cuda.so
  model=$root/deploy/sample prompt_words="The film is a story about a young man who"
  IFS=, read -r gpu driver < <(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
  commit=$(cat "$work/commit")
  # Keeps the GPU initialised, so that no process waits for that, and records its clocks.
  nvidia-smi dmon -d 2 >"$OUT/dmon.txt" 2>&1 &
  watch=$!
fi
"$here/results.py" machine "$OUT/stages.json" "GPU=$gpu" "driver=${driver# }" "commit=$commit" "date=$(date -u +%F)" \
  "kernel=$(uname -r)"
timeout 60 "$bin/sluice" pack "$model" --out "$pack" --bits q4 --force --quiet >>"$OUT/log.txt" 2>&1 ||
  echo "lease.sh: the sample was not packed" >&2

# outcome_of STATUS
outcome_of() {
  case $1 in
    0) echo passed ;;
    "$skipped") echo "not run" ;;
    124 | 137) echo cut ;;
    *) echo failed ;;
  esac
}

failed=0
for stage in "${stages[@]}"; do
  name=${stage%:*} limit=${stage#*:}
  [ $fake = 0 ] || limit=$((3 * limit))  # the interpreter runs on a machine with other load
  left=$((seconds - SECONDS + began))
  [ $left -ge 5 ] || break
  [ "$limit" -le $left ] || limit=$left
  start=$SECONDS
  printf '\n== %s, at most %s s\n' "$name" "$limit" | tee -a "$OUT/log.txt"
  if [[ $(uname -r) == 4.4.0 && " answer qwen transports daemons " == *" $name "* ]]; then
    status=$skipped  # gVisor lacks the seals and pidfds that the daemons need
  else
    timeout -k 5 "$limit" bash "$here/lease.sh" --stage "$name" >>"$OUT/log.txt" 2>&1
    status=$?
  fi
  outcome=$(outcome_of $status)
  [[ $outcome == passed || $outcome == "not run" ]] || failed=1
  "$here/results.py" stage "$OUT/stages.json" "$name" "$outcome" $((SECONDS - start)) "$limit"
  printf '%s: %s after %s s\n' "$name" "$outcome" $((SECONDS - start))
done
"$here/results.py" table "$OUT" | tee "$OUT/table.txt"
[ $failed = 0 ] || { echo && tail -n 40 "$OUT/log.txt"; }
exit $failed
