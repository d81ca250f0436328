#!/usr/bin/env bash
# Installs what building, testing and running Sluice needs from Debian 12's packages.
# Idempotent: asks the package manager only for what is missing. Needs root or sudo.
#
#   install_deps.sh           the packages
#   install_deps.sh --cuda    nvcc and the CUDA runtime, into $CUDA_PREFIX [/usr/local/cuda], from the Python registry,
#                             which is where NVIDIA publishes them for every distribution; digests are checked. Only
#                             the CUDA device needs this; what is built without it says so.
set -euo pipefail

CUDA_PREFIX=${CUDA_PREFIX:-/usr/local/cuda}
# One release of the toolkit. cuBLAS is not among them: nothing uses it yet.
CUDA_REQUIREMENTS='
nvidia-cuda-nvcc==13.0.88 --hash=sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03
nvidia-cuda-crt==13.0.88 --hash=sha256:2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4
nvidia-nvvm==13.0.88 --hash=sha256:c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-cuda-cccl==13.0.85 --hash=sha256:e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649
'

install_cuda() {
  if [ -x "$CUDA_PREFIX/bin/nvcc" ]; then
    echo "install_deps: $CUDA_PREFIX has nvcc already"
    return
  fi
  if [ -e "$CUDA_PREFIX" ]; then
    echo "install_deps: $CUDA_PREFIX exists and has no bin/nvcc: remove it, or set CUDA_PREFIX" >&2
    exit 1
  fi
  if [ "$(uname -m)" != x86_64 ]; then
    echo "install_deps: --cuda knows the packages for x86_64 only, this is $(uname -m)" >&2
    exit 1
  fi
  if ! python3 -m pip --version >/dev/null 2>&1; then
    echo "install_deps: --cuda needs pip: apt-get install python3-pip" >&2
    exit 1
  fi
  mkdir -p "$(dirname "$CUDA_PREFIX")"
  # Beside the target, so that the last step is a rename.
  staging=$(mktemp -d "$CUDA_PREFIX.XXXXXX")
  trap 'rm -rf "$staging"' EXIT
  echo "$CUDA_REQUIREMENTS" >"$staging/requirements.txt"
  python3 -m pip install --quiet --no-deps --no-compile --only-binary :all: --require-hashes \
    --root-user-action ignore --target "$staging/packages" -r "$staging/requirements.txt" || {
    echo "install_deps: pip install of the CUDA packages failed: is the network up? (log above)" >&2
    exit 1
  }
  tree="$staging/packages/nvidia/cu13"
  ln -s lib "$tree/lib64"
  "$tree/bin/nvcc" --version >/dev/null || {
    echo "install_deps: the installed nvcc does not run" >&2
    exit 1
  }
  chmod 755 "$tree"
  mv "$tree" "$CUDA_PREFIX"
  echo "install_deps: installed $("$CUDA_PREFIX/bin/nvcc" --version | grep release) in $CUDA_PREFIX"
}

case "${1:-}" in
  "") ;;
  --cuda)
    install_cuda
    exit 0
    ;;
  *)
    echo "install_deps: unknown argument $1; usage: install_deps.sh [--cuda]" >&2
    exit 2
    ;;
esac

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
