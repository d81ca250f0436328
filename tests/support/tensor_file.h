// A safetensors file in memory: reads values, adds tensors, and writes it again. And folders with MTP layers
// made of a model's own tensors.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace sluice {

class TensorFile {
 public:
  // The file must exist and be well-formed: a test's own.
  explicit TensorFile(const std::string& path);

  const nlohmann::json& header() const { return header_; }
  // Bytes of a tensor.
  std::string_view Bytes(const std::string& name) const;
  template <typename T>
  std::vector<T> Values(const std::string& name) const {
    const std::string_view bytes = Bytes(name);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
  // Token ids, which are stored in 64 bits.
  std::vector<int32_t> Ids(const std::string& name) const {
    const std::vector<int64_t> ids = Values<int64_t>(name);
    return {ids.begin(), ids.end()};
  }

  void Add(const std::string& name, const std::string& type, const std::vector<uint64_t>& shape,
           std::string_view bytes);
  // Adds a copy of every tensor of a decoder layer: `from` and `to` begin the names.
  void CopyLayer(const std::string& from, const std::string& to);
  // Sets every tensor to zeros whose name begins and contains so.
  void Clear(const std::string& begin, const std::string& part);
  absl::Status Write(const std::string& path) const;

 private:
  nlohmann::json header_;
  std::string data_;
};

// Writes the model of folder `from` to `to` with an MTP layer that predicts the token before once more: its
// decoder layer, a copy of the model's last, adds nothing. DeepSeek-V3 and Qwen3-Next.
absl::Status AddEchoingMtpLayer(const std::string& from, const std::string& to);

}  // namespace sluice
