// GgufBuilder: builds the bytes of small GGUF files.
//
// Thread safety: used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

class GgufBuilder {
 public:
  template <typename T>
  static std::string Bytes(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static std::string Text(std::string_view text) { return Bytes<uint64_t>(text.size()) + std::string(text); }

  GgufBuilder& U32(std::string_view key, uint32_t value) { return Key(key, 4, Bytes(value)); }
  GgufBuilder& F32(std::string_view key, float value) { return Key(key, 6, Bytes(value)); }
  GgufBuilder& Word(std::string_view key, std::string_view value) { return Key(key, 8, Text(value)); }
  GgufBuilder& Words(std::string_view key, const std::vector<std::string>& values) {
    std::string list = Bytes<uint32_t>(8) + Bytes<uint64_t>(values.size());
    for (const std::string& value : values) list += Text(value);
    return Key(key, 9, list);
  }
  // Adds a value of any type in its file form.
  GgufBuilder& Key(std::string_view key, uint32_t type, const std::string& value) {
    keys_ += Text(key) + Bytes(type) + value;
    ++key_count_;
    return *this;
  }
  // `dims` has the fastest dimension first; `data` is padded to 32 bytes.
  GgufBuilder& Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                      std::string data) {
    infos_ += Text(name) + Bytes(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) infos_ += Bytes(dim);
    infos_ += Bytes(type) + Bytes<uint64_t>(data_.size());
    data.resize((data.size() + 31) / 32 * 32);
    data_ += data;
    ++tensor_count_;
    return *this;
  }

  std::string File(uint32_t version = 3) const {
    std::string file = "GGUF" + Bytes(version) + Bytes<uint64_t>(tensor_count_) +
                       Bytes<uint64_t>(key_count_) + keys_ + infos_;
    if (tensor_count_ > 0) file.resize((file.size() + 31) / 32 * 32);
    return file + data_;
  }

 private:
  std::string keys_;
  std::string infos_;
  std::string data_;
  uint64_t key_count_ = 0;
  uint64_t tensor_count_ = 0;
};

}  // namespace sluice
