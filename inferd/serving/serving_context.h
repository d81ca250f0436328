// ServingContext: the engine, the served model's description and limits, for all servers. gRPC-free.
//
// Thread safety: constant once the server has started, except for the limits; the pointees are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "inferd/api/engine_api.h"
#include "inferd/serving/dialect.h"
#include "inferd/serving/live_calls.h"
#include "inferd/serving/server_state.h"
#include "inferd/serving/serving_metrics.h"
#include "pack/pack_format.h"
#include "spdlog/logger.h"

namespace sluice {
class Pack;
}  // namespace sluice

namespace sluice::inferd {

// The served model, as described to clients.
struct ServedModel {
  std::string id;    // the pack's identity
  std::string name;  // the pack folder's name
  std::string family;
  uint32_t vocab = 0;
  uint32_t hidden = 0;
  uint32_t layers = 0;
  uint32_t experts_per_layer = 0;
  uint32_t experts_per_token = 0;
  uint32_t context = 0;  // maximum tokens of prompt and answer together
  uint32_t max_position = 0;
  std::optional<int32_t> bos;
  std::vector<int32_t> eos;
  GenerationDefaults generation;
  bool has_chat_template = false;
  uint64_t expert_bytes = 0;
  uint64_t dense_bytes = 0;
};

// `dir`: the pack's folder, whose name is the model's name. `context`: maximum positions of one sequence.
ServedModel DescribeModel(const Pack& pack, const std::string& dir, uint32_t context);

// Limits may change while calls run; each call uses the current value when it reads it.
struct ServingLimits {
  // Maximum unread bytes of one stream. Below gRPC's default message limit of clients, 4 MiB, as all of it
  // may be sent in one message.
  Tunable<size_t> max_unsent_bytes{1 << 20};
  // Timeout of a reader for one message.
  Tunable<absl::Duration> stall_timeout{absl::Seconds(30)};
  // Time limit of a call whose client set none.
  Tunable<absl::Duration> max_request_time{absl::Hours(24)};
};

struct ServingContext {
  ServerState* state = nullptr;          // has the engine
  const Tokenizer* tokenizer = nullptr;  // null: the pack has none
  const ChatFormatter* chat = nullptr;   // null: no chat template, or an unsupported one
  absl::Status chat_error;               // reason for the latter
  Dialect dialect;                       // syntax of thoughts and tool calls in the chat template
  ServedModel model;
  ServingLimits limits;
  LiveCalls* calls = nullptr;
  spdlog::logger* log = nullptr;
  ServingMetrics* metrics = nullptr;  // null: no metrics
};

// Adds to `status` what clients rely on: a reason on every failure, a retry hint if a retry can help.
absl::Status Explain(absl::Status status);

}  // namespace sluice::inferd
