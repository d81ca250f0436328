#!/usr/bin/env bash
# Installs what building, testing and running Sluice needs from Debian 12's packages.
# Idempotent: asks the package manager only for what is missing. Needs root or sudo.
set -euo pipefail

PACKAGES=(
  build-essential cmake ninja-build ccache pkg-config git ca-certificates
  clang clang-format
  libgrpc++-dev protobuf-compiler-grpc protobuf-compiler libprotobuf-dev
  libabsl-dev libspdlog-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev
  libhwy-dev liburing-dev libpcre2-dev libutf8proc-dev libxxhash-dev
  libcpp-httplib-dev libsystemd-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  systemd
  python3 python3-grpcio python3-protobuf python3-numpy
)

missing=()
for package in "${PACKAGES[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "install_deps: all ${#PACKAGES[@]} packages are installed"
  exit 0
fi

echo "install_deps: installing ${#missing[@]} packages: ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_deps: needs root or sudo to install: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
fail() {
  echo "install_deps: $1 failed: is the network up and /etc/apt/sources.list right for Debian 12? (log above)" >&2
  exit 1
}
"${as_root[@]}" apt-get update -q || fail "apt-get update"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -q --no-install-recommends "${missing[@]}" || fail "apt-get install"
