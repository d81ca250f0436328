// A StoreCore with a clock and a reader under the test's control, and no thread: Pump() is a round.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fakes/fake_block_reader.h"
#include "tests/support/fakes/fake_clock.h"
#include "tests/support/fakes/fake_extent_source.h"
#include "tests/support/local_client.h"
#include "weightd/engine/store_core.h"

namespace sluice::weightd {

inline constexpr uint64_t kPart = 64 * 1024;  // one part of an expert
inline constexpr uint64_t kExpert = 3 * kPart;

class CoreTest : public ::testing::Test {
 protected:
  CoreTest() : poller_(*Poller::Create()) {}

  void Start(uint64_t budget,
             FakeExtentSource::Shape shape = {.layers = 4, .experts = 8, .part_bytes = kPart}) {
    StoreCore::Options options;
    options.boot_epoch = 77;
    options.arena.budget = budget;
    options.attach_timeout_nanos = attach_timeout_nanos_;
    options.session_quota = session_quota_;
    options.scrub_rate = scrub_rate_;
    StoreCore::Environment environment;
    environment.reader = other_reader_ == nullptr ? &reader_ : other_reader_;
    environment.clock = &clock_;
    environment.poller = &poller_;
    environment.reader->SetSink([this](ReadResult result) { reads_.push_back(std::move(result)); });
    environment.transfers = transfers_;
    core_ = std::make_unique<StoreCore>(options, environment);
    AddPack(std::move(shape));
  }
  uint32_t AddPack(FakeExtentSource::Shape shape) {
    auto source = std::make_unique<FakeExtentSource>(std::move(shape));
    source_ = source.get();
    return *core_->AddPack(std::move(source), {0});
  }
  SessionParams Params(uint32_t threads = 1) {
    SessionParams params;
    params.packs = {0};
    params.compute_threads = threads;
    params.layout.ring_entries = 64;
    return params;
  }
  uint64_t OpenSession(uint32_t threads = 1) {
    auto handle = core_->OpenSession(Params(threads));
    EXPECT_TRUE(handle.ok()) << handle.status();
    return handle.ok() ? handle->session : 0;
  }
  LocalClient Client(uint64_t session) { return LocalClient(*core_->Local(session)); }

  // Rounds until nothing moves.
  void Pump() {
    for (int i = 0; i < 1000; ++i) {
      if (!core_->Pump(std::exchange(reads_, {})) && reads_.empty()) {
        return;
      }
    }
    FAIL() << "the core never came to rest";
  }
  void HandleEvents() {
    for (const PollEvent& event : poller_.Wait(0)) {
      core_->HandleEvent(event);
    }
    Pump();
  }
  ExtentId ExpertExtentId(uint32_t layer, uint32_t expert) {
    return source_->FirstExpertExtent(layer, expert);
  }

  // The next completion, reaped; nothing if there is none.
  static std::optional<CompletionEntry> Next(LocalClient* client) {
    CompletionEntry entry;
    if (!client->Peek(&entry)) {
      return std::nullopt;
    }
    client->Reap();
    return entry;
  }
  static absl::StatusCode CodeOf(const std::optional<CompletionEntry>& entry) {
    EXPECT_TRUE(entry.has_value());
    return entry.has_value() ? static_cast<absl::StatusCode>(entry->code) : absl::StatusCode::kUnknown;
  }
  std::vector<std::string> Log() {
    std::vector<std::string> lines;
    for (const auto& [severity, line] : core_->TakeLog()) {
      lines.push_back(line);
    }
    return lines;
  }

  FakeClock clock_;
  Poller poller_;
  FakeBlockReader reader_{FakeBlockReader::Mode::kManual};
  std::vector<ReadResult> reads_;
  BlockReader* other_reader_ = nullptr;  // in place of reader_
  int64_t attach_timeout_nanos_ = 0;
  uint64_t session_quota_ = 0;
  uint64_t scrub_rate_ = 0;
  TransferEngine* transfers_ = nullptr;       // set before Start(), for slabs
  const FakeExtentSource* source_ = nullptr;  // of the pack added last
  std::unique_ptr<StoreCore> core_;
};

}  // namespace sluice::weightd
