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

say "checking the format of the tree"
"$SLUICE_ROOT/deploy/lib/check_format.sh" || failed=$((failed + 1))
end_stage "packages and format"

build_preset release
end_stage "build of preset release"
run_tests release -j "$SLUICE_JOBS"

build_preset asan sanitized_tests
end_stage "build of preset asan"
run_tests asan -j "$SLUICE_JOBS" -L asan

build_preset tsan threaded_tests
end_stage "build of preset tsan"
run_tests tsan -j "$SLUICE_JOBS" -L tsan

say "checking lock annotations and changed sources with Clang"
"$SLUICE_ROOT/deploy/lib/check_thread_safety.sh" "$SLUICE_JOBS" || failed=$((failed + 1))
"$SLUICE_ROOT/deploy/lib/check_tidy.sh" || failed=$((failed + 1))
end_stage "lock annotations and clang-tidy"

say "the ten slowest tests"
/usr/bin/python3 "$SLUICE_ROOT/deploy/lib/count_tests.py" --slowest "${reports[@]}"
say "stages"
printf '%s\n' "${stages[@]}"

echo
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
