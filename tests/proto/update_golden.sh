#!/usr/bin/env bash
# Takes the protos as they are into the golden descriptor set that breaking_test.cc compares with. Run it after
# adding to a proto; never to silence NothingPromisedIsBroken once a release has gone out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../proto"
protoc -I . --include_imports --descriptor_set_out=../tests/proto/golden.descriptors $(find sluice -name '*.proto' | sort)
echo "update_golden: $(stat -c %s ../tests/proto/golden.descriptors) bytes"
