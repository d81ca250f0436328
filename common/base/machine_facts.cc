#include "common/base/machine_facts.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/size.h"
#include "common/base/status.h"

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

namespace {

// Upper bound on CPU ids: a list that names more is not a list of CPUs.
constexpr uint32_t kMaxCpus = 1u << 16;

// The file's text without space around it; empty if there is none.
std::string TextOf(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return std::string(absl::StripAsciiWhitespace(text.str()));
}

absl::StatusOr<std::vector<uint32_t>> ListIn(const std::string& path) {
  absl::StatusOr<std::vector<uint32_t>> list = ParseCpuList(TextOf(path));
  if (!list.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", list.status().message()));
  }
  return list;
}

// "Node 0 MemTotal:  131072 kB" of a node's meminfo.
uint64_t MemoryOf(const std::string& node_folder) {
  std::ifstream in(node_folder + "/meminfo");
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t kilobytes = 0;
    if (words.size() >= 4 && words[2] == "MemTotal:" && absl::SimpleAtoi(words[3], &kilobytes)) {
      return kilobytes * 1024;
    }
  }
  return 0;
}

// The lowest CPU of those that share the core of `cpu`, by the kernel's newer and older name of that list.
absl::StatusOr<uint32_t> CoreOf(uint32_t cpu, const std::string& system) {
  for (const char* name : {"core_cpus_list", "thread_siblings_list"}) {
    ASSIGN_OR_RETURN(const std::vector<uint32_t> siblings,
                     ListIn(absl::StrCat(system, "/cpu/cpu", cpu, "/topology/", name)));
    if (!siblings.empty()) {
      return siblings.front();
    }
  }
  return cpu;
}

std::vector<uint32_t> NodeIds(const std::string& system) {
  std::vector<uint32_t> ids;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(system + "/node", error)) {
    const std::string name = entry.path().filename().string();
    uint32_t id = 0;
    if (name.rfind("node", 0) == 0 && absl::SimpleAtoi(name.substr(4), &id)) {
      ids.push_back(id);
    }
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

// Orders a node's CPUs: one CPU of each core before the second CPU of any core.
std::vector<uint32_t> CoresFirst(const CpuNode& node) {
  std::vector<std::pair<uint32_t, uint32_t>> order;  // CPUs of the same core before this one, and the CPU
  std::map<uint32_t, uint32_t> seen;
  for (const LogicalCpu& logical_cpu : node.cpus) {
    order.emplace_back(seen[logical_cpu.core]++, logical_cpu.cpu);
  }
  std::sort(order.begin(), order.end());
  std::vector<uint32_t> cpus;
  for (const auto& [before, cpu] : order) {
    cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

uint32_t CpuTopology::cpus() const {
  size_t count = 0;
  for (const CpuNode& node : nodes) count += node.cpus.size();
  return static_cast<uint32_t>(count);
}

uint32_t CpuTopology::cores() const {
  std::set<uint32_t> cores;
  for (const CpuNode& node : nodes) {
    for (const LogicalCpu& logical_cpu : node.cpus) cores.insert(logical_cpu.core);
  }
  return static_cast<uint32_t>(cores.size());
}

std::vector<uint32_t> CpuTopology::MemoryNodes() const {
  std::vector<uint32_t> ids;
  for (const CpuNode& node : nodes) {
    if (node.memory_bytes > 0) ids.push_back(node.id);
  }
  return ids;
}

std::vector<uint32_t> AllowedCpus() {
  for (uint32_t capacity = 1024; capacity <= kMaxCpus; capacity *= 2) {
    cpu_set_t* const set = CPU_ALLOC(capacity);
    const size_t bytes = CPU_ALLOC_SIZE(capacity);
    CPU_ZERO_S(bytes, set);
    std::vector<uint32_t> cpus;
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    const bool larger = !known && errno == EINVAL;  // the kernel's mask is larger
    for (uint32_t cpu = 0; known && cpu < capacity; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (!larger) return cpus;
  }
  return {};
}

absl::StatusOr<std::vector<uint32_t>> ParseCpuList(const std::string& text) {
  std::vector<uint32_t> cpus;
  if (text.empty()) return cpus;
  for (const absl::string_view range : absl::StrSplit(text, ',')) {
    const std::vector<std::string> ends = absl::StrSplit(range, '-');
    uint32_t first = 0;
    uint32_t last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last) ||
        last < first || last >= kMaxCpus) {
      return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no list such as 0-3,8"));
    }
    for (uint32_t cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

absl::StatusOr<CpuTopology> ReadCpuTopology(absl::Span<const uint32_t> allowed, const std::string& root) {
  const std::string system = root + "/sys/devices/system";
  std::vector<LogicalCpu> logical_cpus;
  for (const uint32_t cpu : allowed) {
    ASSIGN_OR_RETURN(const uint32_t core, CoreOf(cpu, system));
    logical_cpus.push_back({cpu, core});
  }
  CpuTopology topology;
  for (const uint32_t id : NodeIds(system)) {
    const std::string folder = absl::StrCat(system, "/node/node", id);
    ASSIGN_OR_RETURN(const std::vector<uint32_t> cpus, ListIn(folder + "/cpulist"));
    CpuNode node{id, {}, MemoryOf(folder)};
    std::copy_if(logical_cpus.begin(), logical_cpus.end(), std::back_inserter(node.cpus),
                 [&](const LogicalCpu& logical_cpu) {
                   return std::binary_search(cpus.begin(), cpus.end(), logical_cpu.cpu);
                 });
    if (!node.cpus.empty() || node.memory_bytes > 0) topology.nodes.push_back(std::move(node));
  }
  if (topology.cpus() < logical_cpus.size()) {  // no tree, or that of another machine
    topology.nodes = {CpuNode{0, std::move(logical_cpus), 0}};
  }
  return topology;
}

absl::StatusOr<std::vector<uint32_t>> AssignCpus(const CpuTopology& topology, uint32_t threads) {
  const uint32_t cpus = topology.cpus();
  if (threads > cpus) {
    return absl::InvalidArgumentError(absl::StrCat(
        threads, " threads cannot be pinned, this process may use ", cpus, cpus == 1 ? " CPU" : " CPUs"));
  }
  std::vector<uint32_t> chosen;
  uint64_t before = 0;
  for (const CpuNode& node : topology.nodes) {
    // Thread i runs on the node in which its share of all CPUs begins.
    const uint64_t begin = before * threads / std::max(1u, cpus);
    before += node.cpus.size();
    const uint64_t end = before * threads / std::max(1u, cpus);
    const std::vector<uint32_t> order = CoresFirst(node);
    chosen.insert(chosen.end(), order.begin(), order.begin() + static_cast<std::ptrdiff_t>(end - begin));
  }
  return chosen;
}

std::string DescribeTopology(const CpuTopology& topology) {
  std::vector<std::string> nodes;
  for (const CpuNode& node : topology.nodes) {
    std::set<uint32_t> cores;
    for (const LogicalCpu& logical_cpu : node.cpus) cores.insert(logical_cpu.core);
    nodes.push_back(
        absl::StrCat(node.id, " with ", node.cpus.size(), node.cpus.size() == 1 ? " CPU" : " CPUs", " of ",
                     cores.size(), cores.size() == 1 ? " core" : " cores",
                     node.memory_bytes > 0 ? absl::StrCat(" and ", FormatSize(node.memory_bytes)) : ""));
  }
  return absl::StrCat(nodes.size(), nodes.size() == 1 ? " node: " : " nodes: ", absl::StrJoin(nodes, ", "));
}

}  // namespace sluice
