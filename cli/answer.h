// An answer as run and chat report it: the keys of their JSON are a contract.
//
// Thread safety: plain values; used by the main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cli/client.h"
#include "cli/json.h"

namespace sluice::cli {

struct Answer {
  std::vector<uint32_t> token_ids;
  std::string text;
  api::Finished finished;

  void Add(const api::Delta& delta);
};

Json AnswerJson(const Answer& answer);

// Prints two lines with the answer's statistics to stderr.
void PrintStatistics(const Answer& answer);

// Teacher-forced scoring of one sequence through inferd's EvaluationService; the rows received are checked.
//
// Thread safety: Score may be called from several threads at once: inferd computes the sequences together.

struct ScoreTask {
  std::vector<int32_t> input;
  std::vector<int32_t> targets;  // empty, or as long as input
  bool want_logits = false;
};

// Rows [first, first + argmax.size()); the views are valid during the call only.
struct ScoredRows {
  uint64_t first = 0;
  absl::Span<const uint32_t> argmax;
  absl::Span<const float> target_logprobs;  // empty without targets
  absl::Span<const float> logits;           // [rows, vocab], empty unless wanted
};

// Runs the task and calls `handle` for each row once, in order. INTERNAL if the server's rows are
// inconsistent.
absl::Status Score(Client* client, const ScoreTask& task, uint64_t vocab,
                   absl::FunctionRef<absl::Status(const ScoredRows&)> handle);

// Conversation: the messages of `sluice chat`, and the requests made from them.
//
// Thread safety: a plain value; used by the main thread.

class Conversation {
 public:
  // The system message; empty: none. Kept by Clear.
  void SetSystem(const std::string& text) { system_ = text; }
  void Clear() { turns_.clear(); }

  // Adds a question as a new turn.
  void Ask(const std::string& question);
  // Sets the last question's answer. REQUIRES: the last turn is a question without an answer.
  void Answer(const std::string& text);
  // Removes the last question and its answer; returns false if there is none.
  bool TakeBack();
  // Removes the oldest question and its answer; returns false if there is none.
  bool ForgetOldest();

  size_t turns() const { return turns_.size(); }

  void Fill(google::protobuf::RepeatedPtrField<api::ChatMessage>* messages) const;
  // [{"role", "content"}, ...]
  Json Messages() const;

 private:
  struct Turn {
    std::string question;
    std::string answer;
    bool answered = false;
  };
  std::string system_;
  std::vector<Turn> turns_;
};

// Adds "name=value" to the template variables of `options`; a value that is not JSON becomes a string.
// INVALID_ARGUMENT without a name.
absl::Status AddTemplateArgument(const std::string& argument, api::ChatOptions* options);

}  // namespace sluice::cli
