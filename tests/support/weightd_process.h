// WeightdProcess: the real weightd as a child of the test.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/child_process.h"

namespace sluice {

class WeightdProcess {
 public:
  // Serves `packs` on `<folder>/weightd.sock` once Start() is called; its log is `<folder>/weightd.log`.
  WeightdProcess(std::string folder, std::vector<std::string> packs, uint64_t dram_budget)
      : folder_(std::move(folder)), packs_(std::move(packs)), dram_budget_(dram_budget) {}

  // Does not wait until it serves: clients do.
  void Start(const std::vector<std::string>& more = {}, int inherit_fd = -1) {
    std::vector<std::string> argv = {ProgramPath("weightd"), "--socket", socket(), "--dram-budget",
                                     std::to_string(dram_budget_)};
    for (const std::string& pack : packs_) {
      argv.insert(argv.end(), {"--pack", pack});
    }
    argv.insert(argv.end(), more.begin(), more.end());
    process_.emplace(argv, log_path(), inherit_fd);
  }
  void Kill() { process_.reset(); }

  std::string socket() const { return folder_ + "/weightd.sock"; }
  std::string log_path() const { return folder_ + "/weightd.log"; }
  std::string log() const {
    std::ifstream file(log_path());
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  ChildProcess& process() { return *process_; }
  bool running() const { return process_.has_value(); }

 private:
  const std::string folder_;
  const std::vector<std::string> packs_;
  const uint64_t dram_budget_;
  std::optional<ChildProcess> process_;
};

}  // namespace sluice
