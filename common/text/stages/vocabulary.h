// Vocabulary: tokens and their ids, both ways.
//
// Thread safety: thread-compatible; a const Vocabulary may be read from any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

class Vocabulary {
 public:
  // Ids lie in [0, kMaxIds): eight times the largest published vocabulary, and a bound on the memory that a
  // single absurd id in a file can cost.
  static constexpr int64_t kMaxIds = 1 << 21;

  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // InvalidArgument, naming token and id, if the id is out of range or either is in use.
  absl::Status Add(std::string_view token, int64_t id);

  std::optional<int32_t> Find(std::string_view token) const {
    const auto it = ids_.find(absl::string_view(token.data(), token.size()));
    return it == ids_.end() ? std::nullopt : std::optional<int32_t>(it->second);
  }

  // Returns nullopt for an id out of range or unused. The view lives as long as the vocabulary.
  std::optional<std::string_view> TokenOf(int32_t id) const {
    if (id < 0 || id >= end() || tokens_[static_cast<size_t>(id)] == nullptr) {
      return std::nullopt;
    }
    return *tokens_[static_cast<size_t>(id)];
  }

  // Returns the largest id + 1.
  int32_t end() const { return static_cast<int32_t>(tokens_.size()); }
  size_t size() const { return ids_.size(); }

 private:
  std::deque<std::string> storage_;  // stable addresses
  absl::flat_hash_map<absl::string_view, int32_t> ids_;
  std::vector<const std::string*> tokens_;  // by id; null where unused
};

}  // namespace sluice
