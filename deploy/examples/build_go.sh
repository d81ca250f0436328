#!/usr/bin/env bash
# Builds generate_grpc.go from a clone, with Debian 12's packages alone:
#
#   apt-get install golang-go golang-google-grpc-dev golang-github-golang-protobuf-1-5-dev \
#                   golang-google-protobuf-dev protoc-gen-go-1-5 protoc-gen-go-grpc protobuf-compiler
#   deploy/examples/build_go.sh OUT     # the program OUT
#
# With Go modules the same code works: generate the stubs into a module of yours that replaces sluice/inference/v1.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: build_go.sh OUT" >&2; exit 2; }
out=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/src"
files=(sluice/inference/v1/{generation,inference}.proto)
package=sluice/inference/v1
names=$(printf "M%s=$package," "${files[@]}")
protoc -I proto --go_out="${names%,}:$work/src" --go-grpc_out="${names%,}:$work/src" "${files[@]}"
GO111MODULE=off GOPATH=$work:/usr/share/gocode GOCACHE=${GOCACHE:-$work/cache} go build -o "$out" deploy/examples/generate_grpc.go
