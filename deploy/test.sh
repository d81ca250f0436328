#!/usr/bin/env bash
# Runs all tests on a new Debian 12 machine: installs missing packages, builds, runs every test, then some again under the
# sanitizers. SLUICE_STRESS=ci|full scales the long tests. Prints the seconds of each stage and the ten slowest tests; the last
# line counts the tests.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/build.sh"
export SLUICE_STRESS=${SLUICE_STRESS:-ci}

require_host
say "installing dependencies"
"$SLUICE_ROOT/deploy/install_deps.sh" || die "dependencies are missing"
mkdir -p "$SLUICE_ROOT/build"

passed=0
failed=0
reports=()
stages=()
not_run=()
sanitized_test_seconds=400  # twice what the tests of a sanitizer take
stage_began=$SECONDS

# end_stage NAME: records the seconds since the end of the previous stage.
end_stage() {
  stages+=("$(printf '%6d s  %s' $((SECONDS - stage_began)) "$1")")
  stage_began=$SECONDS
}

# run_tests PRESET [ctest options]: adds the run's counts to passed and failed.
run_tests() {
  local preset=$1
  shift
  local report=$SLUICE_ROOT/build/$preset.junit.xml
  rm -f "$report"
  say "testing preset $preset (SLUICE_STRESS=$SLUICE_STRESS)"
  ctest --test-dir "$SLUICE_ROOT/build/$preset" --output-on-failure --no-tests=error --output-junit "$report" "$@"
  [ -s "$report" ] || die "ctest of preset $preset wrote no report"
  local counts
  counts=$(/usr/bin/python3 "$SLUICE_ROOT/deploy/lib/count_tests.py" "$report") || die "unreadable report $report"
  passed=$((passed + ${counts% *}))
  failed=$((failed + ${counts#* }))
  reports+=("$report")
  end_stage "tests of preset $preset"
}

# sanitize PRESET TARGET LABELS: builds the target and runs the tests that have a label matching LABELS, if the time allows.
sanitize() {
  local preset=$1 seconds=0
  if [ "${SLUICE_SECONDS:-0}" -gt 0 ]; then
    seconds=$((SLUICE_SECONDS - SECONDS - sanitized_test_seconds))
    [ "$seconds" -gt 0 ] || { not_run+=("$preset") && return; }
  fi
  SLUICE_BUILD_SECONDS=$seconds build_preset "$preset" "$2" || { not_run+=("$preset") && return; }
  end_stage "build of preset $preset"
  run_tests "$preset" -j "$SLUICE_JOBS" -L "$3"
}

say "checking the format of the tree"
"$SLUICE_ROOT/deploy/lib/check_format.sh" || failed=$((failed + 1))
end_stage "packages and format"

build_preset release
end_stage "build of preset release"
run_tests release -j "$SLUICE_JOBS"

say "checking lock annotations and changed sources with Clang"
"$SLUICE_ROOT/deploy/lib/check_thread_safety.sh" "$SLUICE_JOBS" || failed=$((failed + 1))
"$SLUICE_ROOT/deploy/lib/check_tidy.sh" || failed=$((failed + 1))
end_stage "lock annotations and clang-tidy"

if [ "$SLUICE_STRESS" = full ]; then
  sanitize asan all_sanitized_tests asan
else
  sanitize asan sanitized_tests '^asan$'
fi
sanitize tsan threaded_tests '^tsan$'

say "the ten slowest tests"
/usr/bin/python3 "$SLUICE_ROOT/deploy/lib/count_tests.py" --slowest "${reports[@]}"
say "stages"
printf '%s\n' "${stages[@]}"
[ ${#not_run[@]} -eq 0 ] || say "not run, since $SLUICE_SECONDS seconds are over: ${not_run[*]}"

echo
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
