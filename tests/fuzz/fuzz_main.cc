// The libFuzzer program of a group of targets: SLUICE_FUZZ_TARGET names the one that runs. With
// SLUICE_FUZZ_SEEDS it writes the target's seeds into that folder and ends; with SLUICE_FUZZ_LIST it prints
// the names. tests/fuzz/run.py runs it.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace sluice {
std::vector<FuzzTarget> SLUICE_FUZZ_TARGETS();  // of the group's header
}  // namespace sluice

namespace {

sluice::FuzzTarget chosen;

void WriteSeeds(const std::string& folder) {
  const std::vector<std::string> seeds = chosen.seeds();
  for (size_t i = 0; i < seeds.size(); ++i) {
    std::ofstream(folder + "/seed-" + std::to_string(i), std::ios::binary) << seeds[i];
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* wanted = std::getenv("SLUICE_FUZZ_TARGET");
  for (const sluice::FuzzTarget& target : sluice::SLUICE_FUZZ_TARGETS()) {
    if (std::getenv("SLUICE_FUZZ_LIST") != nullptr) std::puts(target.name);
    if (wanted != nullptr && std::string_view(wanted) == target.name) chosen = target;
  }
  if (std::getenv("SLUICE_FUZZ_LIST") != nullptr) std::exit(0);
  if (chosen.run == nullptr) {
    std::fprintf(stderr, "SLUICE_FUZZ_TARGET names no target; SLUICE_FUZZ_LIST=1 prints them\n");
    std::exit(2);
  }
  if (const char* folder = std::getenv("SLUICE_FUZZ_SEEDS"); folder != nullptr) {
    WriteSeeds(folder);
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  chosen.run(data, size);
  return 0;
}
