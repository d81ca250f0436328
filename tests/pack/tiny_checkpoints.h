// Tiny checkpoints of the families, for tests that pack them.
//
// Thread safety: pure functions; a failed read is a failure of the running test.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "common/base/half.h"
#include "common/model/safetensors.h"

namespace sluice {

// A checkpoint in memory: bf16 tensors as float32 beside the float32 ones, in the order of the file.
struct Tensor {
  std::vector<uint64_t> shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Tensor>;

inline std::string TinyDir(const std::string& family) { return "tests/data/tiny/" + family; }

inline Tensors ReadCheckpoint(const std::string& dir) {
  const auto folder = TensorFolder::Open(dir);
  EXPECT_TRUE(folder.ok()) << folder.status();
  Tensors tensors;
  for (const TensorInfo& info : (*folder)->tensors()) {
    std::vector<std::byte> raw(info.bytes);
    EXPECT_TRUE((*folder)->Read(info, 0, absl::MakeSpan(raw)).ok());
    Tensor tensor{info.shape, {}};
    if (info.type == ElementType::kF32) {
      tensor.values.resize(raw.size() / sizeof(float));
      std::memcpy(tensor.values.data(), raw.data(), raw.size());
      tensors[info.name] = std::move(tensor);
      continue;
    }
    for (size_t i = 0; i < raw.size(); i += 2) {
      uint16_t bits = 0;
      std::memcpy(&bits, raw.data() + i, 2);
      tensor.values.push_back(Bf16ToFloat(bits));
    }
    tensors[info.name] = std::move(tensor);
  }
  return tensors;
}

}  // namespace sluice
