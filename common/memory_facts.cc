#include "common/memory_facts.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

std::optional<std::string> ReadText(const std::string& path) {
  std::ifstream in(path);
  if (!in) {
    return std::nullopt;
  }
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The number in a one-line file; "max" and v1's "no limit" are kNoMemoryLimit.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  const std::optional<std::string> text = ReadText(path);
  if (!text.has_value()) {
    return std::nullopt;
  }
  const std::string word = text->substr(0, text->find_first_of(" \n"));
  if (word == "max") {
    return kNoMemoryLimit;
  }
  uint64_t value;
  if (!absl::SimpleAtoi(word, &value)) {
    return std::nullopt;
  }
  return value >= (1ull << 62) ? kNoMemoryLimit : value;
}

// The value of "key value" lines, times `unit`.
std::optional<uint64_t> ReadKeyed(const std::string& path, const std::string& key, uint64_t unit) {
  std::ifstream in(path);
  std::string name;
  uint64_t value;
  std::string rest;
  while (in >> name >> value) {
    if (name == key) {
      return value * unit;
    }
    std::getline(in, rest);
  }
  return std::nullopt;
}

struct CgroupLocation {
  std::string mount;  // where the hierarchy with the memory controller is mounted
  std::string path;   // this process's group in it
  bool v2 = true;
};

CgroupLocation FindCgroup(const std::string& root) {
  CgroupLocation location{root + "/sys/fs/cgroup", "", true};
  std::istringstream lines(ReadText(root + "/proc/self/cgroup").value_or(""));
  std::string line;
  while (std::getline(lines, line)) {  // "id:controllers:path"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = absl::StrCat(",", line.substr(first + 1, second - first - 1), ",");
    if (controllers.find(",memory,") != std::string::npos) {
      return CgroupLocation{absl::StrCat(root, "/sys/fs/cgroup/memory"), line.substr(second + 1), false};
    }
    if (controllers == ",,") {
      location.path = line.substr(second + 1);
    }
  }
  return location;
}

// Checks this process's group and all its ancestors, and keeps the one with the least memory left.
void ReadCgroup(const std::string& root, MemoryFacts* facts) {
  const CgroupLocation location = FindCgroup(root);
  std::string path = location.path;
  uint64_t tightest = kNoMemoryLimit;
  while (true) {
    const std::string group = location.mount + (path == "/" ? "" : path);
    const auto limit = ReadNumber(group + (location.v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    const auto current = ReadNumber(group + (location.v2 ? "/memory.current" : "/memory.usage_in_bytes"));
    if (limit.has_value() && *limit != kNoMemoryLimit && current.has_value()) {
      // Inactive file pages are reclaimed before any of our memory.
      const uint64_t cache =
          ReadKeyed(group + "/memory.stat", location.v2 ? "inactive_file" : "total_inactive_file", 1)
              .value_or(0);
      const uint64_t used = *current - std::min(*current, cache);
      const uint64_t left = *limit - std::min(*limit, used);
      if (left < tightest) {
        tightest = left;
        facts->cgroup_limit = *limit;
        facts->cgroup_used = used;
      }
    }
    const size_t slash = path.find_last_of('/');
    if (path.empty() || slash == std::string::npos) {
      return;
    }
    path = path.substr(0, slash);
  }
}

}  // namespace

absl::StatusOr<MemoryFacts> ReadMemoryFacts(const std::string& root) {
  const std::optional<uint64_t> available = ReadKeyed(root + "/proc/meminfo", "MemAvailable:", 1024);
  if (!available.has_value()) {
    return absl::InternalError(absl::StrCat(root, "/proc/meminfo has no MemAvailable"));
  }
  MemoryFacts facts;
  facts.total = ReadKeyed(root + "/proc/meminfo", "MemTotal:", 1024).value_or(0);
  facts.available = *available;
  ReadCgroup(root, &facts);
  return facts;
}

uint64_t UsableMemory(const MemoryFacts& facts) {
  if (facts.cgroup_limit == kNoMemoryLimit) {
    return facts.available;
  }
  return std::min(facts.available, facts.cgroup_limit - std::min(facts.cgroup_limit, facts.cgroup_used));
}

}  // namespace sluice
