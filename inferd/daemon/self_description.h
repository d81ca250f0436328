// Self description of an inferd for clients and operators: the served model, versions and CPU features.
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inferd/serving/serving_context.h"
#include "pack/pack.h"

namespace sluice::inferd {

// Resolves symbolic links; returns the path itself if that fails.
std::string AbsolutePath(const std::string& path);

// `path`: the pack's folder, whose name is the model's name. `context`: maximum positions of one sequence.
ServedModel DescribeModel(const Pack& pack, const std::string& path, uint32_t context);

// Names and versions, such as "gRPC 1.51.1".
std::vector<std::string> LinkedLibraries();

// Name of the CPU kernels in use: avx512, avx2vnni or avx2.
const char* IsaName();

}  // namespace sluice::inferd
