// What an inferd tells clients and operators of itself: the model that it serves, what it was built with.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inferd/serving/serving_context.h"
#include "pack/pack.h"

namespace sluice {

// Without symbolic links; the path itself where it cannot be resolved.
std::string AbsolutePath(const std::string& path);

// `path`: of the pack's folder, whose name is the model's. `context`: the most positions of one sequence.
ServedModel DescribeModel(const Pack& pack, const std::string& path, uint32_t context);

// Names and versions, such as "gRPC 1.51.1".
std::vector<std::string> LinkedLibraries();

// Of the CPU's kernels in use: avx512, avx2vnni or avx2.
const char* IsaName();

}  // namespace sluice
