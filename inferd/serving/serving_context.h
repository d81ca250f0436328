// What inferd's services work with: the engine, the model's description, limits. gRPC-free.
//
// Thread safety: constant once the server has started, but for the limits; what the pointers lead to is
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/text/chat/chat_formatter.h"
#include "common/text/tokenizer.h"
#include "common/tunable.h"
#include "inferd/api/engine_api.h"
#include "inferd/dialect/dialect.h"
#include "inferd/serving/serving_metrics.h"
#include "inferd/serving/stream_pump.h"
#include "pack/pack_format.h"
#include "spdlog/logger.h"

namespace sluice {

// The model that is served, as clients hear of it.
struct ServedModel {
  std::string id;    // the pack's identity
  std::string name;  // the pack folder's name
  std::string family;
  uint32_t vocab = 0;
  uint32_t hidden = 0;
  uint32_t layers = 0;
  uint32_t experts_per_layer = 0;
  uint32_t experts_per_token = 0;
  uint32_t context = 0;  // tokens of prompt and answer together
  uint32_t max_position = 0;
  std::optional<int32_t> bos;
  std::vector<int32_t> eos;
  GenerationDefaults generation;
  bool has_chat_template = false;
  uint64_t expert_bytes = 0;
  uint64_t dense_bytes = 0;
};

// May be changed while calls run; each call goes by what is in effect when it looks.
struct ServingLimits {
  // What one stream may hold back for its reader. Below gRPC's default limit of a client's message, 4 MiB, as
  // all of it may travel in one.
  Tunable<size_t> max_unsent_bytes{1 << 20};
  // How long a reader may take for one message.
  Tunable<absl::Duration> stall_timeout{absl::Seconds(30)};
  // The time limit of a call whose client set none.
  Tunable<absl::Duration> max_request_time{absl::Hours(24)};
};

struct ServingContext {
  EngineApi* engine = nullptr;
  const Tokenizer* tokenizer = nullptr;  // null: the pack has none
  const ChatFormatter* chat = nullptr;   // null: no chat template, or one that cannot be run:
  absl::Status chat_error;               // why
  Dialect dialect;                       // of the chat template: how thoughts and calls of tools are written
  ServedModel model;
  ServingLimits limits;
  StreamPump* pump = nullptr;
  spdlog::logger* log = nullptr;
  ServingMetrics* metrics = nullptr;  // null: nobody counts
};

}  // namespace sluice
