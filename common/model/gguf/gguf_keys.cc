// GgufKeys: typed access to the keys of a GGUF file.
#include <cmath>
#include <utility>

#include "common/model/gguf/gguf_header.h"
#include "common/status.h"

namespace sluice {

absl::Status GgufKeys::Error(const std::string& key, const std::string& what) const {
  return absl::InvalidArgumentError(absl::StrCat(subject_, ": ", key, " ", what));
}

absl::Status GgufKeys::Unsupported(const std::string& key, const std::string& what) const {
  return absl::UnimplementedError(absl::StrCat(subject_, ": ", key, " ", what, " is not supported"));
}

absl::Status GgufKeys::Add(const std::string& key, GgufValue value) {
  if (!values_.emplace(key, std::move(value)).second) return Error(key, "is there twice");
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<const T*> GgufKeys::Get(const std::string& key, const char* what) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return static_cast<const T*>(nullptr);
  const T* const value = std::get_if<T>(&it->second);
  if (value == nullptr) return Error(key, absl::StrCat("is no ", what));
  return value;
}

absl::StatusOr<std::optional<int64_t>> GgufKeys::Int(const std::string& key, int64_t low,
                                                     int64_t high) const {
  ASSIGN_OR_RETURN(const int64_t* value, Get<int64_t>(key, "whole number"));
  if (value == nullptr) return std::optional<int64_t>();
  if (*value < low || *value > high) {
    return Error(key,
                 absl::StrCat("is ", *value, "; a whole number from ", low, " to ", high, " is expected"));
  }
  return std::optional<int64_t>(*value);
}

absl::StatusOr<std::optional<double>> GgufKeys::Real(const std::string& key) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return std::optional<double>();
  if (const auto* whole = std::get_if<int64_t>(&it->second)) {
    return std::optional<double>(static_cast<double>(*whole));
  }
  const auto* value = std::get_if<double>(&it->second);
  if (value == nullptr || !std::isfinite(*value)) return Error(key, "is no finite number");
  return std::optional<double>(*value);
}

absl::StatusOr<std::optional<std::string>> GgufKeys::Text(const std::string& key) const {
  ASSIGN_OR_RETURN(const std::string* value, Get<std::string>(key, "text"));
  return value == nullptr ? std::optional<std::string>() : std::optional<std::string>(*value);
}

absl::StatusOr<const std::vector<int64_t>*> GgufKeys::Ints(const std::string& key) const {
  return Get<std::vector<int64_t>>(key, "list of whole numbers");
}

absl::StatusOr<const std::vector<double>*> GgufKeys::Reals(const std::string& key) const {
  return Get<std::vector<double>>(key, "list of numbers");
}

absl::StatusOr<const std::vector<std::string>*> GgufKeys::Texts(const std::string& key) const {
  return Get<std::vector<std::string>>(key, "list of texts");
}

}  // namespace sluice
