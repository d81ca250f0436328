// The fake of a process that knows nothing of it: set up by the environment when the module is loaded, and
// what its checks have found is written down when the process ends.
//
// SLUICE_FAKE_CUDA: words NAME=VALUE with spaces between: seed, memory_mib, devices, capability
// (FakeOptions), and reports, a file to which the process' reports are appended, one a line, "none" if there
// are none. A process that is killed writes nothing.
// kill=PROGRAM:CALL:FILE kills (SIGKILL) the process of that program at its CALL-th call of CUDA's, if it can
// remove FILE: one process, once.
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/cuda_fake/fake_cuda.h"

namespace sluice::cuda_fake {
namespace {

[[noreturn]] void Refuse(absl::string_view word) {
  std::fprintf(stderr, "SLUICE_FAKE_CUDA: \"%s\" is not understood\n", std::string(word).c_str());
  std::_Exit(EXIT_FAILURE);
}

// Nothing for other programs.
std::function<void(uint64_t)> KillAt(absl::string_view words) {
  const std::vector<std::string> parts = absl::StrSplit(words, ':');
  uint64_t at = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &at)) {
    Refuse(words);
  }
  if (parts[0] != program_invocation_short_name) {
    return nullptr;
  }
  return [at, file = parts[2]](uint64_t call) {
    if (call == at && unlink(file.c_str()) == 0) {
      kill(getpid(), SIGKILL);
    }
  };
}

class Setup {
 public:
  Setup() {
    const char* const words = std::getenv("SLUICE_FAKE_CUDA");
    FakeOptions options;
    for (const absl::string_view word :
         absl::StrSplit(words == nullptr ? "" : words, ' ', absl::SkipEmpty())) {
      const std::pair<absl::string_view, absl::string_view> pair =
          absl::StrSplit(word, absl::MaxSplits('=', 1));
      uint64_t number = 0;
      if (pair.first == "reports") {
        reports_ = std::string(pair.second);
      } else if (pair.first == "kill") {
        options.on_call = KillAt(pair.second);
      } else if (!absl::SimpleAtoi(pair.second, &number)) {
        Refuse(word);
      } else if (pair.first == "seed") {
        options.seed = number;
      } else if (pair.first == "memory_mib") {
        options.memory_bytes = number << 20;
      } else if (pair.first == "devices") {
        options.devices = static_cast<int>(number);
      } else if (pair.first == "capability") {
        options.capability = static_cast<int>(number);
      } else {
        Refuse(word);
      }
    }
    ResetFake(options);
  }
  ~Setup() {
    std::FILE* const file = reports_.empty() ? nullptr : std::fopen(reports_.c_str(), "a");
    if (file == nullptr) {
      return;
    }
    const FakeCounters counters = CountersOfFake();
    std::string text;
    for (const Report& report : TakeReports()) {
      absl::StrAppend(&text, getpid(), ": ", absl::StrReplaceAll(report.text, {{"\n", " | "}}), "\n");
    }
    if (text.empty()) {
      text =
          absl::StrCat(getpid(), ": none (", counters.launches, " kernels, ", counters.copies, " copies, ",
                       counters.pageable_copies, " pageable, ", counters.allocations, " allocations left)\n");
    }
    std::fputs(text.c_str(), file);
    std::fclose(file);
  }

 private:
  std::string reports_;
};

const Setup setup;

}  // namespace
}  // namespace sluice::cuda_fake
