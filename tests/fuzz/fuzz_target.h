// One entry point for fuzzing, with its seeds: used by the seeded mutations of CI (target_mutation_test.cc)
// and by libFuzzer (fuzz_main.cc). Each of client_targets.h, session_targets.h, text_targets.h and
// pack_targets.h lists its own.
//
// Thread safety: pure functions and plain values; a target keeps no state that changes what it does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace sluice {

struct FuzzTarget {
  const char* name;  // of the option --target of tests/fuzz/run.py
  // Accepts any bytes, must not crash, and ends the program if a reader breaks a promise. Returns true if the
  // reader accepted the bytes.
  bool (*run)(const uint8_t* data, size_t size);
  // Valid inputs; read in the source root.
  std::vector<std::string> (*seeds)();
  int mutations;  // of a run in CI
};

namespace fuzz {

// Ends the program, as a fuzzer expects it of a defect.
inline void Require(bool condition, std::string_view promise) {
  if (condition) return;
  std::fprintf(stderr, "fuzz target: a reader broke its promise: %.*s\n", static_cast<int>(promise.size()),
               promise.data());
  std::abort();
}

inline std::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

inline absl::Span<const std::byte> Bytes(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

// The whole file. Ends the program if there is none: programs run in the source root.
std::string ReadSeed(const std::string& path);

// Takes numbers from the front of an input; zeros behind its end.
class InputReader {
 public:
  InputReader(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool done() const { return left_ == 0; }
  size_t left() const { return left_; }
  // Copies up to sizeof(T) bytes.
  template <typename T>
  T Take() {
    T value{};
    Copy(&value, sizeof(T));
    return value;
  }
  void Copy(void* to, size_t size);

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace fuzz
}  // namespace sluice
