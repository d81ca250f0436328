// Conversation: the messages of `sluice chat`, and the requests made of them.
//
// Thread safety: a plain value; used by the main thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/client/client.h"
#include "cli/ui/json.h"

namespace sluice::cli {

class Conversation {
 public:
  // The system message; empty: none. Kept by Clear.
  void SetSystem(const std::string& text) { system_ = text; }
  void Clear() { turns_.clear(); }

  // A question and, once it is there, its answer.
  void Ask(const std::string& question);
  // REQUIRES: the last turn is a question without an answer.
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

// "name=value" into `options`' template variables; a value that is no JSON is a text. InvalidArgument without
// a name.
absl::Status AddTemplateArgument(const std::string& argument, api::ChatOptions* options);

}  // namespace sluice::cli
