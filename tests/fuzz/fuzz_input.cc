#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/fuzz/fuzz_target.h"

namespace sluice::fuzz {

std::string ReadSeed(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "fuzz target: cannot read %s: run it in the source root\n", path.c_str());
    std::exit(1);
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void InputReader::Copy(void* to, size_t size) {
  const size_t bytes = std::min(size, left_);
  if (bytes > 0) std::memcpy(to, data_, bytes);
  data_ += bytes;
  left_ -= bytes;
}

}  // namespace sluice::fuzz
