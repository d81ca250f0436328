// How a folder's linear layers are quantized, by its config.json (`quantization_config`) or its
// hf_quant_config.json: a method and the numbers that the tensors do not tell. Which layers are quantized the
// tensors say (layers.h); lists of names in a config are hints, and not read.
//
// Thread safety: plain values and free functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice {

class JsonObject;

enum class QuantMethod : uint8_t {
  kNone,
  kFp8,                // F8_E4M3 with a scale a block, a row or a tensor
  kCompressedTensors,  // int4, nvfp4 or mxfp4 in weight_packed, or fp8
  kModelopt,           // NVFP4
  kAwq,
  kGptq,
  kMxfp4,  // GPT-OSS: experts as blocks and scales
};

struct Quantization {
  QuantMethod method = QuantMethod::kNone;
  uint32_t block_rows = 0;  // kFp8: values that share a scale; 0: the scale's shape says
  uint32_t block_cols = 0;
  uint32_t group = 0;           // kAwq, kGptq: inputs that share a scale; 0: all of them
  bool symmetric = false;       // kGptq: zeros are 8, whatever is stored
  bool zeros_less_one = false;  // kGptq: stored zeros are one too small
  bool operator==(const Quantization&) const = default;
};

// The member `quantization_config` of `config` (a config.json, or a part of it); kNone if it is absent.
// Unimplemented naming the method or setting that is not supported, and what to use instead; InvalidArgument
// naming a malformed member.
absl::StatusOr<Quantization> ReadQuantization(const JsonObject& config);

// The text of an hf_quant_config.json, which older folders have instead.
absl::StatusOr<Quantization> ParseModeloptQuantization(std::string_view text, const std::string& subject);

}  // namespace sluice
