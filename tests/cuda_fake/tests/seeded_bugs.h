// Copies of the project's kernels with a bug each, made by seed_bugs.py.
//
// Thread safety: pure functions.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/cuda_fake/tests/kernels_testing.h"

namespace sluice::cuda_fake {

struct SeededBug {
  std::string name;
  std::string kernel;
  std::string
      findings;  // of which the first report must be one; "wrong": no report, and a wrong result; "": no bug
  KernelEntries entries;
};

// Each in a source of its own.
void AddBugsOf_norm(std::vector<SeededBug>* bugs);
void AddBugsOf_round(std::vector<SeededBug>* bugs);
void AddBugsOf_gemv(std::vector<SeededBug>* bugs);
void AddBugsOf_tiles(std::vector<SeededBug>* bugs);
void AddBugsOf_attention(std::vector<SeededBug>* bugs);
void AddBugsOf_coefficients(std::vector<SeededBug>* bugs);
void AddBugsOf_down(std::vector<SeededBug>* bugs);

// Prints the parameter of a failed test.
inline void PrintTo(const SeededBug& bug, std::ostream* out) { *out << bug.name; }

}  // namespace sluice::cuda_fake
