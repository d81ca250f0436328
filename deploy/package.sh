#!/usr/bin/env bash
# Builds the Debian packages: installs missing requirements, builds the programs, and prints the paths of the packages,
# build/release/package/sluice_VERSION_amd64.deb and, if nvcc is installed, sluice-cuda_VERSION_amd64.deb.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/build.sh"

require_host
"$SLUICE_ROOT/deploy/install_deps.sh"
mkdir -p "$SLUICE_ROOT/build"
build_preset release package_files
say "packing"
(cd "$SLUICE_ROOT/build/release" && cpack -G DEB)
ls -l "$SLUICE_ROOT"/build/release/package/*.deb
