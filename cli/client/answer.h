// An answer as run and chat report it: the keys of their JSON are a contract.
//
// Thread safety: plain values; used by the main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/client/client.h"
#include "cli/ui/json.h"

namespace sluice::cli {

struct Answer {
  std::vector<uint32_t> token_ids;
  std::string text;
  api::Finished finished;

  void Add(const api::Delta& delta);
};

Json AnswerJson(const Answer& answer);

// Two lines on stderr under the answer: what it took.
void PrintStatistics(const Answer& answer);

}  // namespace sluice::cli
