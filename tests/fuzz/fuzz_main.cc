// One libFuzzer program per target: clang with -DSLUICE_FUZZERS=ON builds fuzz_<target>.
#include "tests/fuzz/pack_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::SLUICE_FUZZ_TARGET(data, size);
  return 0;
}
