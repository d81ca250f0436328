#!/usr/bin/env bash
# Builds the Debian package: installs what is missing, builds the programs, and prints the package's path, which is
# build/release/package/sluice_VERSION_amd64.deb.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/build.sh"

require_host
"$SLUICE_ROOT/deploy/install_deps.sh"
mkdir -p "$SLUICE_ROOT/build"
build_preset release sluice weightd inferd manuals
say "packing"
(cd "$SLUICE_ROOT/build/release" && cpack -G DEB)
ls -l "$SLUICE_ROOT"/build/release/package/*.deb
