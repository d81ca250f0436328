#include "tests/support/engine_testing.h"

#include <filesystem>
#include <thread>
#include <utility>

#include "common/base/status.h"
#include "pack/writer/pack_writer.h"
#include "tests/support/delayed/delayed_backend.h"

namespace sluice {

absl::Status PackFolder(const std::string& model_dir, const std::string& out_dir, const std::string& bits,
                        const std::string& layout) {
  const std::string dense_bits = bits == "bf16" || bits == "source" ? "" : "bf16";
  ASSIGN_OR_RETURN(PackOptions options, PackOptionsFromText(bits, "", 64, dense_bits, layout));
  options.threads = 1;
  return PackModel(model_dir, out_dir, options, nullptr, nullptr).status();
}

absl::Status PackTiny(const TinyModelSpec& spec, const std::string& work_dir, const std::string& out_dir,
                      const std::string& bits) {
  RETURN_IF_ERROR(WriteTinyModel(spec, work_dir));
  return PackFolder(work_dir, out_dir, bits);
}

void CollectingSink::OnStarted(const inferd::Usage&, double) {
  MutexLock lock(&mutex_);
  started_ = true;
}

void CollectingSink::OnTokens(absl::Span<const inferd::TokenOut> tokens, std::string_view text) {
  MutexLock lock(&mutex_);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  pieces_.emplace_back(text);
  changed_.SignalAll();
}

void CollectingSink::OnFinished(const inferd::FinishInfo& info) {
  MutexLock lock(&mutex_);
  info_ = info;
  ended_ = true;
  changed_.SignalAll();
}

void CollectingSink::OnError(const absl::Status& status) {
  MutexLock lock(&mutex_);
  error_ = status;
  ended_ = true;
  changed_.SignalAll();
}

absl::Status CollectingSink::Await() {
  MutexLock lock(&mutex_);
  while (!ended_) {
    changed_.Wait(&mutex_);
  }
  return error_;
}

void CollectingSink::AwaitTokens(size_t count) {
  MutexLock lock(&mutex_);
  while (!ended_ && tokens_.size() < count) {
    changed_.Wait(&mutex_);
  }
}

bool CollectingSink::started() const {
  MutexLock lock(&mutex_);
  return started_;
}

bool CollectingSink::ended() const {
  MutexLock lock(&mutex_);
  return ended_;
}

std::vector<int32_t> CollectingSink::ids() const {
  MutexLock lock(&mutex_);
  std::vector<int32_t> ids;
  for (const inferd::TokenOut& token : tokens_) {
    ids.push_back(token.token_id);
  }
  return ids;
}

std::vector<inferd::TokenOut> CollectingSink::tokens() const {
  MutexLock lock(&mutex_);
  return tokens_;
}

std::string CollectingSink::text() const {
  MutexLock lock(&mutex_);
  std::string text;
  for (const std::string& piece : pieces_) {
    text += piece;
  }
  return text;
}

std::vector<std::string> CollectingSink::pieces() const {
  MutexLock lock(&mutex_);
  return pieces_;
}

inferd::FinishInfo CollectingSink::info() const {
  MutexLock lock(&mutex_);
  return info_;
}

void CollectingScoreSink::OnRows(uint32_t first, absl::Span<const int32_t> argmax,
                                 absl::Span<const float> target_logprobs, absl::Span<const float> logits) {
  MutexLock lock(&mutex_);
  if (first != rows_) {
    error_ = absl::InternalError(absl::StrCat("row ", first, " comes after row ", rows_));
  }
  rows_ += static_cast<uint32_t>(argmax.size());
  argmax_.insert(argmax_.end(), argmax.begin(), argmax.end());
  target_logprobs_.insert(target_logprobs_.end(), target_logprobs.begin(), target_logprobs.end());
  logits_.insert(logits_.end(), logits.begin(), logits.end());
}

bool CollectingScoreSink::Congested() {
  MutexLock lock(&mutex_);
  asked_ = true;
  changed_.SignalAll();
  return congested_;
}

void CollectingScoreSink::OnFinished(const inferd::Usage&, const inferd::Timings&) {
  MutexLock lock(&mutex_);
  ended_ = true;
  changed_.SignalAll();
}

void CollectingScoreSink::OnError(const absl::Status& status) {
  MutexLock lock(&mutex_);
  error_ = status;
  ended_ = true;
  changed_.SignalAll();
}

absl::Status CollectingScoreSink::Await() {
  MutexLock lock(&mutex_);
  while (!ended_) {
    changed_.Wait(&mutex_);
  }
  return error_;
}

void CollectingScoreSink::SetCongested(bool congested) {
  MutexLock lock(&mutex_);
  congested_ = congested;
  asked_ = false;
}

void CollectingScoreSink::AwaitQuestion() {
  MutexLock lock(&mutex_);
  while (!asked_) {
    changed_.Wait(&mutex_);
  }
}

bool CollectingScoreSink::ended() const {
  MutexLock lock(&mutex_);
  return ended_;
}

std::vector<int32_t> CollectingScoreSink::argmax() const {
  MutexLock lock(&mutex_);
  return argmax_;
}

std::vector<float> CollectingScoreSink::target_logprobs() const {
  MutexLock lock(&mutex_);
  return target_logprobs_;
}

std::vector<float> CollectingScoreSink::logits() const {
  MutexLock lock(&mutex_);
  return logits_;
}

absl::StatusOr<TestEngine> StartEngine(const std::string& pack_dir, const TestEngineOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<FakeWeightClient> client,
                   FakeWeightClient::Open(pack_dir, options.weights));
  TestEngine test;
  test.client = client.get();
  const auto device_factory =
      [threads = options.threads, seed = options.delay_seed](
          const inferd::DeviceNeeds& needed) -> absl::StatusOr<inferd::ComputeDevices> {
    const auto make = [&] {
      return threads == 0 ? CreateReferenceBackend(needed.limits) : CreateCpuBackend(needed.limits, threads);
    };
    inferd::ComputeDevices places;
    ASSIGN_OR_RETURN(places.device, make());
    if (seed != 0) {
      places.device = std::make_unique<DelayedBackend>(std::move(places.device), needed.limits,
                                                       DelayOptions{.seed = seed});
    }
    if (needed.cpu_parallel) {
      ASSIGN_OR_RETURN(places.cpu, make());
    }
    return places;
  };
  ASSIGN_OR_RETURN(test.engine, inferd::Engine::Create(options.engine, std::move(client), device_factory,
                                                       options.tokenizer));
  return test;
}

uint64_t SmallestBudget(const std::string& pack_dir, uint32_t threads) {
  const absl::StatusOr<std::unique_ptr<Pack>> pack = Pack::Open(pack_dir);
  return pack.ok() ? (*pack)->dense_bytes() + 2 * threads * (*pack)->largest_demand_bytes() : 0;
}

inferd::GenerateSpec GreedySpec(const std::string& id, std::vector<int32_t> prompt, uint32_t max_tokens) {
  inferd::GenerateSpec spec;
  spec.request_id = id;
  spec.client = "test";
  spec.prompt = std::move(prompt);
  spec.stopping.max_tokens = max_tokens;
  spec.stopping.ignore_eos = true;
  return spec;
}

absl::StatusOr<std::vector<int32_t>> GenerateIds(inferd::Engine* engine, const inferd::GenerateSpec& spec) {
  auto sink = std::make_shared<CollectingSink>();
  RETURN_IF_ERROR(engine->Generate(spec, sink));
  RETURN_IF_ERROR(sink->Await());
  return sink->ids();
}

absl::StatusOr<std::vector<float>> ScoreLogits(inferd::Engine* engine, const std::string& id,
                                               std::vector<int32_t> input) {
  inferd::ScoreSpec spec;
  spec.request_id = id;
  spec.input = std::move(input);
  spec.want_logits = true;
  auto sink = std::make_shared<CollectingScoreSink>();
  RETURN_IF_ERROR(engine->Score(spec, sink));
  RETURN_IF_ERROR(sink->Await());
  return sink->logits();
}

inferd::EngineStats AwaitQuiet(const inferd::Engine& engine) {
  for (;;) {
    const inferd::EngineStats stats = engine.Stats();
    if (stats.sequences_running + stats.sequences_waiting + stats.fetches_outstanding == 0) {
      return stats;
    }
    std::this_thread::yield();
  }
}

}  // namespace sluice
