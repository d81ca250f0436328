#include "tests/support/tensor_file.h"

#include <filesystem>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_io.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxFileBytes = 1 << 24;

}  // namespace

TensorFile::TensorFile(const std::string& path) {
  const std::string bytes = *ReadFile(path, kMaxFileBytes);
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  header_ = nlohmann::json::parse(bytes.substr(sizeof(size), size));
  header_.erase("__metadata__");
  data_ = bytes.substr(sizeof(size) + size);
}

std::string_view TensorFile::Bytes(const std::string& name) const {
  const uint64_t begin = header_.at(name)["data_offsets"][0];
  const uint64_t end = header_.at(name)["data_offsets"][1];
  return std::string_view(data_).substr(begin, end - begin);
}

void TensorFile::Add(const std::string& name, const std::string& type, const std::vector<uint64_t>& shape,
                     std::string_view bytes) {
  const std::string copy(bytes);  // it may be a part of data_
  header_[name] = {
      {"dtype", type}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + copy.size()}}};
  data_ += copy;
}

void TensorFile::CopyLayer(const std::string& from, const std::string& to) {
  const nlohmann::json before = header_;
  for (const auto& [name, info] : before.items()) {
    const bool decoder = absl::StrContains(name, ".self_attn.") || absl::StrContains(name, ".mlp.") ||
                         absl::StrContains(name, "_layernorm.");
    if (decoder && absl::StartsWith(name, from)) {
      Add(absl::StrCat(to, name.substr(from.size())), info["dtype"], info["shape"], Bytes(name));
    }
  }
}

void TensorFile::Clear(const std::string& begin, const std::string& part) {
  for (const auto& [name, info] : header_.items()) {
    if (absl::StartsWith(name, begin) && absl::StrContains(name, part)) {
      const uint64_t from = info["data_offsets"][0];
      const uint64_t to = info["data_offsets"][1];
      std::fill(data_.begin() + static_cast<ptrdiff_t>(from), data_.begin() + static_cast<ptrdiff_t>(to),
                '\0');
    }
  }
}

absl::Status TensorFile::Write(const std::string& path) const {
  // A replaced tensor's old bytes are left out: a file has no gaps.
  std::map<uint64_t, std::string> by_place;
  for (const auto& [name, info] : header_.items()) by_place[info["data_offsets"][0]] = name;
  nlohmann::json header = header_;
  std::string data;
  for (const auto& [place, name] : by_place) {
    const uint64_t begin = data.size();
    data += Bytes(name);
    header[name]["data_offsets"] = {begin, data.size()};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  std::string head(sizeof(size), '\0');
  std::memcpy(head.data(), &size, sizeof(size));
  return WriteFileDurably(path, absl::StrCat(head, text, data));
}

absl::Status AddEchoingMtpLayer(const std::string& from, const std::string& to) {
  std::filesystem::create_directories(to);
  for (const char* name : {"config.json", "generation_config.json"}) {
    std::filesystem::copy_file(absl::StrCat(from, "/", name), absl::StrCat(to, "/", name));
  }
  ASSIGN_OR_RETURN(const std::string config, ReadFile(absl::StrCat(from, "/config.json"), kMaxFileBytes));
  const nlohmann::json members = nlohmann::json::parse(config);
  const bool qwen = members["model_type"] == "qwen3_next";
  const uint64_t layers = members["num_hidden_layers"];
  const uint64_t hidden = members["hidden_size"];
  TensorFile file(absl::StrCat(from, "/model.safetensors"));
  const std::string layer = qwen ? "mtp.layers.0." : absl::StrCat("model.layers.", layers, ".");
  const std::string parts = qwen ? "mtp." : layer;
  file.CopyLayer(absl::StrCat("model.layers.", layers - 1, "."), layer);
  file.Clear(layer, "o_proj.");
  file.Clear(layer, "down_proj");
  std::string projection(2 * hidden * hidden * 2, '\0');  // the hidden state's half is the identity
  for (uint64_t i = 0; i < hidden; ++i) {
    projection.replace(2 * (2 * hidden * i + hidden + i), 2, std::string("\x80\x3f", 2));
  }
  file.Add(parts + (qwen ? "fc.weight" : "eh_proj.weight"), "BF16", {hidden, 2 * hidden}, projection);
  const std::vector<const char*> norms =
      qwen ? std::vector<const char*>{"pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"}
           : std::vector<const char*>{"enorm", "hnorm", "shared_head.norm"};
  for (const char* norm : norms) {
    // Ones, or what a family takes for ones.
    std::string ones;
    for (uint64_t i = 0; i < hidden; ++i) ones += qwen ? std::string(2, '\0') : std::string("\x80\x3f", 2);
    file.Add(absl::StrCat(parts, norm, ".weight"), "BF16", {hidden}, ones);
  }
  return file.Write(absl::StrCat(to, "/model.safetensors"));
}

}  // namespace sluice
