#include "daemon/http/http_core.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxKeys = 10'000;

// True for valid names; they become metric labels and log words.
bool IsName(const std::string& text) {
  return !text.empty() && text.size() <= kMaxNameBytes && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
}

}  // namespace

std::optional<absl::Duration> HttpKeyUse::Enter(absl::Time now) {
  if (parallel > 0 && running >= parallel) {
    return absl::Seconds(1);
  }
  if (per_minute > 0) {
    const double rate = per_minute / 60.0;
    const double gained =
        filled == absl::InfinitePast() ? per_minute : absl::ToDoubleSeconds(now - filled) * rate;
    tokens = std::min<double>(per_minute, tokens + gained);
    filled = now;
    if (tokens < 1) {
      return absl::Seconds((1 - tokens) / rate);
    }
    tokens -= 1;
  }
  ++running;
  return std::nullopt;
}

absl::StatusOr<std::unique_ptr<HttpKeys>> HttpKeys::Load(const std::string& path, const HttpKeys* before) {
  struct stat facts {};
  std::ifstream file(path);
  if (!file || stat(path.c_str(), &facts) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("cannot read the keys in ", path));
  }
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": others than its owner may write it; the keys in it are worth nothing"));
  }
  auto keys = std::make_unique<HttpKeys>();
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    RETURN_IF_ERROR(Annotate(keys->AddLine(line, before), absl::StrCat(path, ":", number)));
  }
  if (keys->entries_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": it has no key, so nobody could ask"));
  }
  return keys;
}

absl::Status HttpKeys::AddLine(const std::string& line, const HttpKeys* before) {
  const std::vector<std::string> words =
      absl::StrSplit(line.substr(0, line.find('#')), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.empty()) {
    return absl::OkStatus();
  }
  if (!IsName(words[0])) {
    return absl::InvalidArgumentError(
        absl::StrCat("a name has 1 to ", kMaxNameBytes, " letters, digits, '-', '_' and '.'"));
  }
  Entry entry;
  if (words.size() < 2 || words[1].size() != 2 * entry.digest.size() ||
      !std::all_of(words[1].begin(), words[1].end(), absl::ascii_isxdigit)) {
    return absl::InvalidArgumentError(
        absl::StrCat("behind the name ", words[0], " stands no SHA-256 of 64 hexadecimal digits"));
  }
  const std::string bytes = absl::HexStringToBytes(words[1]);
  std::copy(bytes.begin(), bytes.end(), entry.digest.begin());
  entry.use = std::make_shared<HttpKeyUse>();
  for (const Entry& other : before != nullptr ? before->entries_ : std::vector<Entry>()) {
    if (other.use->name == words[0]) {
      entry.use = other.use;
    }
  }
  for (const Entry& other : entries_) {
    if (other.use->name == words[0]) {
      entry.use = other.use;  // two keys of one name, during a key rotation
    }
  }
  entry.use->name = words[0];
  entry.use->parallel = 0;
  entry.use->per_minute = 0;
  for (size_t i = 2; i < words.size(); ++i) {
    const std::pair<std::string, std::string> limit = absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    uint32_t* const out = limit.first == "parallel"     ? &entry.use->parallel
                          : limit.first == "per-minute" ? &entry.use->per_minute
                                                        : nullptr;
    if (out == nullptr || !absl::SimpleAtoi(limit.second, out) || *out == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", words[i], "\" is no limit; these are: parallel=N and per-minute=N, N above 0"));
    }
  }
  if (entries_.size() == kMaxKeys) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxKeys, " keys"));
  }
  entries_.push_back(std::move(entry));
  return absl::OkStatus();
}

std::shared_ptr<HttpKeyUse> HttpKeys::Find(std::string_view key) const {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  std::shared_ptr<HttpKeyUse> found;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(digest.data(), entry.digest.data(), digest.size()) == 0) {
      found = entry.use;
    }
  }
  return found;
}

void HttpMetrics::Answered(const std::string& client, int status) {
  const MutexLock lock(&mutex_);
  ++answers_[{client, status}];
}

HttpCounts HttpMetrics::Counts() const {
  const MutexLock lock(&mutex_);
  return {connections(), refused_.load(), left_.load(), answers_};
}

}  // namespace sluice
