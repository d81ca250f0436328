// Quantization: the method of a folder's linear layers and its parameters, read from `quantization_config` of
// config.json or from hf_quant_config.json. It holds only the numbers that the tensors do not determine. The
// tensors also determine the set of quantized layers (quantized_layers.h); lists of names in a config are
// hints and are not read.
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
  kFp8,                // F8_E4M3 with a scale per block, row or tensor
  kCompressedTensors,  // int4, nvfp4 or mxfp4 in weight_packed, or fp8
  kModelopt,           // NVFP4
  kAwq,
  kGptq,
  kMxfp4,  // GPT-OSS: experts as blocks and scales
};

struct Quantization {
  QuantMethod method = QuantMethod::kNone;
  uint32_t block_rows = 0;  // kFp8: values that share a scale; 0: determined by the scale's shape
  uint32_t block_cols = 0;
  uint32_t group = 0;            // kAwq, kGptq: inputs that share a scale; 0: all of them
  bool symmetric = false;        // kGptq: zeros are 8, regardless of the stored ones
  bool zeros_minus_one = false;  // kGptq: stored zeros are one too small
  bool operator==(const Quantization&) const = default;
};

// Reads the member `quantization_config` of `config` (a config.json, or a part of it); kNone if it is absent.
// Unimplemented naming the unsupported method or setting, and a supported alternative; InvalidArgument naming
// a malformed member.
absl::StatusOr<Quantization> ReadQuantization(const JsonObject& config);

// Parses the text of an hf_quant_config.json, the older place of these settings.
absl::StatusOr<Quantization> ParseModeloptQuantization(std::string_view text, const std::string& subject);

}  // namespace sluice
