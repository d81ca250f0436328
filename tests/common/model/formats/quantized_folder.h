// Helpers to write small safetensors folders of any element types, and to read their layers back.
//
// Thread safety: free functions.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "common/base/file_io.h"
#include "common/base/json_reader.h"
#include "common/model/model_source.h"

namespace sluice {

struct RawTensor {
  std::string type;
  std::vector<uint64_t> shape;
  std::string bytes;
};
using RawTensors = std::map<std::string, RawTensor>;

template <typename T>
RawTensor Raw(const std::string& type, const std::vector<uint64_t>& shape, const std::vector<T>& values) {
  return {type, shape, std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
}

inline void WriteRawFolder(const RawTensors& tensors, const std::string& dir) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.type},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  const std::string start(reinterpret_cast<const char*>(&length), sizeof(length));
  ASSERT_TRUE(WriteFileDurably(dir + "/model.safetensors", start + text + data).ok());
}

// Returns the layer `name` as [rows][cols], read in one piece; the type is F32, or BF16 as bits.
inline std::vector<float> ReadLayer(const Checkpoint& checkpoint, const std::string& name) {
  const CheckpointTensor* tensor = checkpoint.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  const uint64_t rows = tensor->shape[0];
  const uint64_t cols = tensor->shape[1];
  const uint64_t length = tensor->line_length();
  const uint64_t lines = rows * cols / length;
  std::vector<float> values(rows * cols);
  EXPECT_EQ(tensor->type, ElementType::kF32);
  std::vector<float> raw(rows * cols);
  const absl::Status status =
      checkpoint.Read(*tensor, {0, lines, 0, length},
                      absl::MakeSpan(reinterpret_cast<std::byte*>(raw.data()), raw.size() * sizeof(float)));
  EXPECT_TRUE(status.ok()) << status;
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t c = 0; c < cols; ++c) {
      values[r * cols + c] = tensor->by_columns ? raw[c * rows + r] : raw[r * cols + c];
    }
  }
  return values;
}

}  // namespace sluice
