#!/usr/bin/env bash
# Installs the requirements for building, testing and running Sluice: Debian 12's packages, and the sources of xgrammar, which
# Debian lacks. Idempotent: installs only what is missing. Needs root or sudo.
#
#   install_deps.sh           the packages; xgrammar's sources, into $XGRAMMAR_PREFIX [/usr/local/src/xgrammar-0.2.8],
#                             from its source archive in the Python registry ($PIP_INDEX_URL [https://pypi.org/simple]),
#                             whose digest is checked. The sources stay: later builds need no network.
#   install_deps.sh --cuda    nvcc and the CUDA runtime, into $CUDA_PREFIX [/usr/local/cuda], from the Python registry,
#                             which is where NVIDIA publishes them for every distribution; digests are checked. Only
#                             the CUDA device needs this; what is built without it says so.
#   install_deps.sh --cublas  cuBLASLt (421 MB to download), into $CUDA_PREFIX/lib64, from the same place; the digest is
#                             checked. Only `inferd --prefill-math fast` and `auto` use it; no build needs it. Where both
#                             are wanted, --cuda goes first.
set -euo pipefail

# The library for structured output (inferd/grammar), Apache 2.0. cmake/xgrammar/CMakeLists.txt names the version too.
XGRAMMAR_VERSION=0.2.8
XGRAMMAR_PREFIX=${XGRAMMAR_PREFIX:-/usr/local/src/xgrammar-$XGRAMMAR_VERSION}
XGRAMMAR_SHA256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80

CUDA_PREFIX=${CUDA_PREFIX:-/usr/local/cuda}
# One release of the toolkit. cuBLAS is apart: it is large, and no build needs it.
CUDA_REQUIREMENTS='
nvidia-cuda-nvcc==13.0.88 --hash=sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03
nvidia-cuda-crt==13.0.88 --hash=sha256:2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4
nvidia-nvvm==13.0.88 --hash=sha256:c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-cuda-cccl==13.0.85 --hash=sha256:e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649
'
CUBLAS_REQUIREMENTS='
nvidia-cublas==13.0.2.14 --hash=sha256:0cf238ffdbe46c00cb9aa98e7bca745c223a5ca5a53e686ac8b3e5a08fe80d6c
'

# check_cuda_machine OPTION: there are NVIDIA's packages for this machine, and pip to install them.
check_cuda_machine() {
  if [ "$(uname -m)" != x86_64 ]; then
    echo "install_deps: $1 knows the packages for x86_64 only, this is $(uname -m)" >&2
    exit 1
  fi
  if ! python3 -m pip --version >/dev/null 2>&1; then
    echo "install_deps: $1 needs pip: apt-get install python3-pip" >&2
    exit 1
  fi
}

# fetch_cuda REQUIREMENTS: unpacks these packages below $staging, a new folder beside $CUDA_PREFIX, so that the last step
# is a rename.
fetch_cuda() {
  mkdir -p "$(dirname "$CUDA_PREFIX")"
  staging=$(mktemp -d "$CUDA_PREFIX.XXXXXX")
  trap 'rm -rf "$staging"' EXIT
  echo "$1" >"$staging/requirements.txt"
  python3 -m pip install --quiet --no-deps --no-compile --only-binary :all: --require-hashes \
    --root-user-action ignore --target "$staging/packages" -r "$staging/requirements.txt" || {
    echo "install_deps: pip install of the CUDA packages failed: is the network up? (log above)" >&2
    exit 1
  }
  tree="$staging/packages/nvidia/cu13"
}

install_cublas() {
  local name=libcublasLt.so.13
  if [ -e "$CUDA_PREFIX/lib64/$name" ]; then
    echo "install_deps: $CUDA_PREFIX/lib64 has $name already"
    return
  fi
  check_cuda_machine --cublas
  fetch_cuda "$CUBLAS_REQUIREMENTS"
  mkdir -p "$CUDA_PREFIX/lib64"
  chmod 755 "$tree/lib/$name"
  mv "$tree/lib/$name" "$CUDA_PREFIX/lib64/$name"
  echo "install_deps: installed $CUDA_PREFIX/lib64/$name"
}

install_cuda() {
  if [ -x "$CUDA_PREFIX/bin/nvcc" ]; then
    echo "install_deps: $CUDA_PREFIX has nvcc already"
    return
  fi
  if [ -e "$CUDA_PREFIX" ]; then
    echo "install_deps: $CUDA_PREFIX exists and has no bin/nvcc: remove it, or set CUDA_PREFIX" >&2
    exit 1
  fi
  check_cuda_machine --cuda
  fetch_cuda "$CUDA_REQUIREMENTS"
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
  --cublas)
    install_cublas
    exit 0
    ;;
  *)
    echo "install_deps: unknown argument $1; usage: install_deps.sh [--cuda|--cublas]" >&2
    exit 2
    ;;
esac

PACKAGES=(
  build-essential cmake ninja-build ccache lld pkg-config git ca-certificates file
  clang clang-format clang-tidy
  libgrpc++-dev protobuf-compiler-grpc protobuf-compiler libprotobuf-dev
  libabsl-dev libspdlog-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev
  libhwy-dev liburing-dev libpcre2-dev libutf8proc-dev libxxhash-dev
  libsystemd-dev libboost-dev libssl-dev
  libcurl4-openssl-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  systemd
  python3 python3-grpcio python3-jsonschema python3-protobuf python3-numpy
)

missing=()
for package in "${PACKAGES[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
as_root=()
# need_root WHAT: sets as_root, the prefix of commands that install WHAT.
need_root() {
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "install_deps: needs root or sudo to install: $1" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
}

install_packages() {
  if [ ${#missing[@]} -eq 0 ]; then
    echo "install_deps: all ${#PACKAGES[@]} packages are installed"
    return
  fi
  echo "install_deps: installing ${#missing[@]} packages: ${missing[*]}"
  need_root "${missing[*]}"
  "${as_root[@]}" apt-get update -q || fail "apt-get update"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${missing[@]}" || fail "apt-get install"
}

fail() {
  echo "install_deps: $1 failed: is the network up and /etc/apt/sources.list right for Debian 12? (log above)" >&2
  exit 1
}

# Unpacks beside the target and renames at the end, so that an existing folder is always complete.
install_xgrammar() {
  if [ -f "$XGRAMMAR_PREFIX/include/xgrammar/xgrammar.h" ]; then
    echo "install_deps: $XGRAMMAR_PREFIX has xgrammar's sources"
    return
  fi
  if [ -e "$XGRAMMAR_PREFIX" ]; then
    echo "install_deps: $XGRAMMAR_PREFIX exists and is not xgrammar's: remove it, or set XGRAMMAR_PREFIX" >&2
    exit 1
  fi
  staging=$(mktemp -d)
  trap 'rm -rf "$staging"' EXIT
  # pip is not used: before downloading a source archive it installs the build requirements.
  /usr/bin/python3 "$(dirname "${BASH_SOURCE[0]}")/lib/fetch_source.py" xgrammar "$XGRAMMAR_VERSION" "$XGRAMMAR_SHA256" \
    "$staging" cpp include 3rdparty/picojson 3rdparty/dlpack/include LICENSE NOTICE || {
    echo "install_deps: xgrammar's source archive could not be fetched (why: above)" >&2
    exit 1
  }
  local parent
  parent=$(dirname "$XGRAMMAR_PREFIX")
  mkdir -p "$parent" 2>/dev/null && [ -w "$parent" ] || need_root "$XGRAMMAR_PREFIX"
  "${as_root[@]}" mkdir -p "$parent"
  "${as_root[@]}" rm -rf "$XGRAMMAR_PREFIX.new"
  "${as_root[@]}" cp -r "$staging/xgrammar-$XGRAMMAR_VERSION" "$XGRAMMAR_PREFIX.new"
  "${as_root[@]}" chmod -R u=rwX,go=rX "$XGRAMMAR_PREFIX.new"
  "${as_root[@]}" mv -T "$XGRAMMAR_PREFIX.new" "$XGRAMMAR_PREFIX"
  echo "install_deps: unpacked xgrammar $XGRAMMAR_VERSION in $XGRAMMAR_PREFIX"
}

install_packages
install_xgrammar
