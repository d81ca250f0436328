// LoadOrMeasureSparseSwitch: the measurement's file. A few lines of text: the key, the shares, and a digest
// of both.
#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/checksum.h"
#include "common/file_io.h"
#include "common/status.h"
#include "daemon/runtime_dir.h"
#include "kernels/sparse/sparse_profile.h"

namespace sluice {
namespace {

// Raised when kernels change so much that old measurements mislead.
constexpr int kMeasurementVersion = 2;
constexpr uint64_t kMaxFileBytes = 16 << 10;

std::string CpuModel() {
  const absl::StatusOr<std::string> info = ReadFile("/proc/cpuinfo", 16 << 20);
  for (const absl::string_view line : absl::StrSplit(info.value_or(""), '\n')) {
    if (absl::string_view rest = line; absl::ConsumePrefix(&rest, "model name")) {
      const size_t colon = rest.find(": ");
      return std::string(colon == rest.npos ? rest : rest.substr(colon + 2));
    }
  }
  return "unknown";
}

std::string Words(const EncodingDescriptor& d) {
  return absl::StrCat(static_cast<int>(d.encoding), "/", d.group, "/", static_cast<int>(d.meta_bits), "/",
                      d.super_group);
}

// The key: everything that the times depend on.
std::string KeyOf(const Backend& backend, const SparseProfileSpec& s) {
  return absl::StrCat("sluice dense or sparse ", kMeasurementVersion, "\ncpu ", CpuModel(), "\n",
                      backend.Describe(), "\norder ", static_cast<int>(s.order), " up ", Words(s.up),
                      " gate ", Words(s.gate), " down ", Words(s.down), "\nactivation ",
                      static_cast<int>(s.activation.kind), " hidden ", s.hidden, " width ", s.width,
                      " experts ", s.experts, " tokens ", s.max_tokens, "\n");
}

std::string ContentOf(const std::string& key, const SparseSwitch& found) {
  std::string content = absl::StrCat(key, "dense above");
  for (const float share : found.dense_above) {
    char text[32];
    std::snprintf(text, sizeof text, " %.9g", static_cast<double>(share));
    content += text;
  }
  content += '\n';
  return absl::StrCat(content, DigestOf(std::string_view(content)).ToHex(), "\n");
}

// True if `content` is a complete file for this key.
bool Parse(const std::string& content, const std::string& key, SparseSwitch* found) {
  absl::string_view rest(content.data(), content.size());
  if (!absl::ConsumePrefix(&rest, key) || !absl::ConsumePrefix(&rest, "dense above ")) {
    return false;
  }
  const std::vector<absl::string_view> words = absl::StrSplit(rest.substr(0, rest.find('\n')), ' ');
  if (words.size() != SparseSwitch::kBatches) {
    return false;
  }
  for (uint32_t i = 0; i < SparseSwitch::kBatches; ++i) {
    float* share = &found->dense_above[i];
    if (!absl::SimpleAtof(words[i], share) || !(*share >= 0 && *share <= 1)) {
      return false;
    }
  }
  return ContentOf(key, *found) == content;
}

absl::Status MakeFolders(const std::string& path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string prefix = path.substr(0, slash);
    if (mkdir(prefix.c_str(), 0700) != 0 && errno != EEXIST) {
      return ErrnoToStatus(errno, absl::StrCat("create folder ", prefix));
    }
    if (slash == std::string::npos) {
      return absl::OkStatus();
    }
  }
}

absl::Status Store(const std::string& folder, const std::string& path, const std::string& content) {
  RETURN_IF_ERROR(MakeFolders(folder));
  const std::string fresh = path + ".new";
  RETURN_IF_ERROR(WriteFileDurably(fresh, content));
  if (std::rename(fresh.c_str(), path.c_str()) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("rename ", fresh, " to ", path));
  }
  return absl::OkStatus();
}

}  // namespace

std::string SparseProfileFolder() {
  const auto environment = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) {
    return absl::StrCat(cache, "/sluice");
  }
  const std::string home = environment("HOME");
  return home.empty() ? RuntimeDirPath() : absl::StrCat(home, "/.cache/sluice");
}

absl::StatusOr<SparseProfile> LoadOrMeasureSparseSwitch(Backend& backend, const SparseProfileSpec& spec,
                                                        const std::string& folder) {
  const std::string key = KeyOf(backend, spec);
  const std::string path =
      absl::StrCat(folder, "/sparse-", DigestOf(std::string_view(key)).ToHex().substr(0, 16), ".txt");
  SparseProfile profile;
  if (const absl::StatusOr<std::string> content = ReadFile(path, kMaxFileBytes);
      content.ok() && Parse(*content, key, &profile.found)) {
    return profile;
  }
  ASSIGN_OR_RETURN(profile.found, MeasureSparseSwitch(backend, spec));
  profile.measured = true;
  profile.stored = Store(folder, path, ContentOf(key, profile.found));
  return profile;
}

}  // namespace sluice
