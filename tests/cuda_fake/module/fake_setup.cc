// The fake of a process that knows nothing of it: set up by the environment when the module is loaded, and
// what its checks have found is written down when the process ends.
//
// SLUICE_FAKE_CUDA: words NAME=VALUE with spaces between: seed, memory_mib, devices, capability,
// questions, descriptors, read_only_pages, ipc_margin, context_ms, drop_wait, drop_call (FakeOptions), and
// reports, a file to which the process' reports are appended, one a line, "none" if there are none. A process
// that is killed writes nothing.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

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
      } else if (pair.first == "drop_call") {
        options.drop_call = std::string(pair.second);
      } else if (!absl::SimpleAtoi(pair.second, &number)) {
        Refuse(word);
      } else if (pair.first == "seed") {
        options.seed = number;
      } else if (pair.first == "drop_wait") {
        options.drop_wait = number;
      } else if (pair.first == "questions" && number > 0) {
        options.questions = number;
      } else if (pair.first == "descriptors") {
        options.descriptors = number != 0;
      } else if (pair.first == "read_only_pages") {
        options.read_only_pages = number != 0;
      } else if (pair.first == "ipc_margin") {
        options.ipc_margin = number;
      } else if (pair.first == "context_ms") {
        options.context_ms = number;
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
      text = absl::StrCat(getpid(), ": none (", counters.launches, " kernels, ", counters.copies, " copies, ",
                          counters.pageable_copies, " pageable, ", counters.waits, " waits, ",
                          counters.allocations, " allocations left)\n");
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
