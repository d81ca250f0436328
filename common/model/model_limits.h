// Maximum values of a model description, and its consistency check.
//
// The limits are far above any known model and low enough that products of two of them fit 64 bits; they
// bound the memory that a hostile config.json or manifest.json can make this code allocate.
//
// Thread safety: constants and a pure function.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/model/model_config.h"

namespace sluice {

inline constexpr uint32_t kMaxVocab = 1u << 24;
inline constexpr uint32_t kMaxHidden = 1u << 20;
inline constexpr uint32_t kMaxLayers = 4096;
inline constexpr uint32_t kMaxMtpLayers = 8;
inline constexpr uint32_t kMaxHeads = 4096;
inline constexpr uint32_t kMaxHeadDim = 4096;
inline constexpr uint32_t kMaxRank = 1u << 16;  // of latent attention's compressed q and kv
inline constexpr uint32_t kMaxConvKernel = 64;
inline constexpr uint32_t kMaxExperts = 1u << 16;         // of a layer
inline constexpr uint64_t kMaxExpertsTotal = 1ull << 22;  // of all layers
inline constexpr uint32_t kMaxWidth = 1u << 24;           // neurons of an FFN
inline constexpr uint32_t kMaxPosition = 1u << 30;
inline constexpr uint32_t kMaxEndIds = 64;
inline constexpr uint32_t kMaxRate = 1u << 12;  // positions compressed to one
inline constexpr uint32_t kMaxStreamCount = 16;
inline constexpr uint32_t kMaxIterations = 1u << 10;
inline constexpr uint32_t kMaxNgram = 8;               // tokens
inline constexpr uint32_t kMaxNgramHeads = 256;        // rows of a token, of all layers together
inline constexpr uint64_t kMaxNgramRows = 0xffffffff;  // of a table
inline constexpr uint64_t kMaxNgramBase = 1ull << 32;

// Checks that the numbers of `config` are in range and consistent: kv_heads divide heads, top_k is at most
// the number of experts in the groups used, ids are below the vocabulary. InvalidArgument naming `subject`,
// layer, field and numbers.
absl::Status ValidateModelConfig(const ModelConfig& config, const std::string& subject);

}  // namespace sluice
