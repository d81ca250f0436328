"""Runs the fuzz targets under libFuzzer, one after the other, and prints what each reached.

  cmake --preset fuzz && cmake --build build/fuzz --target fuzzers
  tests/fuzz/run.py --seconds 3600 --corpus FOLDER [--target http ...] [--programs build/fuzz/tests]

FOLDER/TARGET keeps the inputs that reach something of their own (minimized at the end of each run), so that the next run goes
on where this one ended. FOLDER/finds gets the inputs that failed, named TARGET-crash-..; exit code 1 if there is one.
Edges are the program's own count of those that the target's inputs reached, seeds included.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
GROUPS = ("client", "session", "text", "pack")
LIMITS = ["-timeout=30", "-rss_limit_mb=4096", "-malloc_limit_mb=2048"]
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


def targets_of(options):
    """The program of each target, of those programs that are built."""
    programs = {}
    for group in GROUPS:
        program = os.path.join(options.programs, "fuzz_" + group)
        if os.path.exists(program):
            listed = subprocess.run([program], env={**os.environ, "SLUICE_FUZZ_LIST": "1"}, stdout=subprocess.PIPE, text=True,
                                    check=True)  # fmt: skip
            programs.update(dict.fromkeys(listed.stdout.split(), program))
    return programs


def call(options, target, arguments, **extra):
    environment = {**os.environ, **OPTIONS, "SLUICE_FUZZ_TARGET": target, **extra}
    return subprocess.run([options.targets[target], *arguments], cwd=ROOT, env=environment, text=True, errors="replace",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)  # fmt: skip


def minimize(options, target, corpus):
    """Replaces the corpus by inputs that reach the same together."""
    smaller = corpus + ".smaller"
    shutil.rmtree(smaller, ignore_errors=True)
    os.makedirs(smaller)
    if call(options, target, ["-merge=1", *LIMITS, smaller, corpus]).returncode == 0:
        shutil.rmtree(corpus)
        os.rename(smaller, corpus)
    else:
        shutil.rmtree(smaller)


def number(pattern, text):
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def fuzz(options, target):
    """One target's row of the table, and the output if it failed."""
    corpus, finds = os.path.join(options.corpus, target), os.path.join(options.corpus, "finds")
    os.makedirs(corpus, exist_ok=True)
    os.makedirs(finds, exist_ok=True)
    with tempfile.TemporaryDirectory() as seeds:
        if call(options, target, [], SLUICE_FUZZ_SEEDS=seeds).returncode != 0:
            raise SystemExit(f"{target}: no seeds")
        began = time.monotonic()
        run = call(options, target, [f"-max_total_time={options.seconds}", "-print_final_stats=1", *LIMITS,
                                     f"-artifact_prefix={finds}/{target}-", corpus, seeds])  # fmt: skip
        seconds = time.monotonic() - began
    minimize(options, target, corpus)
    # A slow unit is a hint alone: on a busy machine any input may take ten seconds.
    found = [name for name in os.listdir(finds) if name.startswith(target + "-") and "slow-unit" not in name]
    row = (target, f"{seconds:.0f}", number(r"stat::number_of_executed_units:\s+(\d+)", run.stdout),
           number(r"cov: (\d+)", run.stdout), len(os.listdir(corpus)), len(found))  # fmt: skip
    return row, run.stdout if run.returncode != 0 else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, required=True, help="of each target")
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--target", action="append", default=[], help="all of them without it")
    parser.add_argument("--programs", default=os.path.join(ROOT, "build/fuzz/tests"), help="their folder")
    options = parser.parse_args()
    options.programs, options.corpus = os.path.abspath(options.programs), os.path.abspath(options.corpus)
    options.targets = targets_of(options)
    unknown = set(options.target) - set(options.targets)
    if unknown or not options.targets:
        parser.error(f"no such target: {sorted(unknown)}; built are {sorted(options.targets)}")
    print("| target | seconds | executions | edges | inputs kept | finds |\n|---|---|---|---|---|---|", flush=True)
    failed = False
    for target in options.target or options.targets:
        row, output = fuzz(options, target)
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
        if output or row[-1]:
            failed = True
            print(output[-6000:], file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
