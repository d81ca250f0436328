#!/usr/bin/env bash
# Runs the main job on a new Debian 12 machine: installs missing requirements, builds, packs the sample model, starts weightd and
# inferd, and streams an answer. usage: deploy/run.sh [PROMPT] [more options of `sluice run`]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/build.sh"

prompt=${1:-"The film is a story about a young man who"}
[ $# -gt 0 ] && shift

require_host
say "installing dependencies"
"$SLUICE_ROOT/deploy/install_deps.sh"
mkdir -p "$SLUICE_ROOT/build"
build_preset release sluice weightd inferd

bin=$SLUICE_ROOT/build/release/bin
pack=$SLUICE_ROOT/build/sample.pack
say "packing the sample model"
"$bin/sluice" pack "$SLUICE_ROOT/deploy/sample" --out "$pack" --bits bf16 --force
say "answering: \"$prompt\""
"$bin/sluice" run --pack "$pack" --prompt "$prompt" -n 64 --temperature 0.6 --top-p 0.9 --seed 2 "$@"
