// Runs PTX that a test has written, without the fake runtime.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cuda_fake/interp/execution.h"
#include "tests/cuda_fake/report.h"

namespace sluice::cuda_fake {

// One instruction's operands and result: `body` reads %h0.. (b16), %r0.. (b32) or %x0.. (b64), f32 and f64
// values in the latter two, and writes %h9, %r9 or %x9. `bytes` of the result: 2, 4 or 8. Predicates %p0..
// and further registers %r1<n> are free. A failure to read the PTX or a report fails the test.
using Operands = std::array<uint64_t, 3>;
std::vector<uint64_t> RunInstruction(const std::string& body, int bytes, const std::vector<Operands>& lanes);

// A kernel `test(.param .u64 data)` with the body given, over `data`, which counts as written; what it found.
struct PtxRun {
  Fault fault = Fault::kNone;
  std::vector<Report> reports;
  std::string error;  // of reading the PTX
};
struct PtxShape {
  uint32_t blocks = 1;
  uint32_t threads = 32;
  uint64_t dynamic_shared = 0;
  uint64_t seed = 0;
};
PtxRun RunPtx(const std::string& body, const PtxShape& shape, std::vector<uint32_t>* data);

}  // namespace sluice::cuda_fake
