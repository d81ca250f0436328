// MTP layers against golden values of another implementation (tests/data/README.md): the layers' logits, and
// the drafter's tokens.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "common/base/status.h"
#include "gtest/gtest.h"
#include "inferd/engine/engine_core.h"
#include "inferd/forward/mtp_drafter.h"
#include "kernels/backend.h"
#include "tests/support/delayed/delayed_backend.h"
#include "tests/support/engine_testing.h"
#include "tests/support/gguf_of_folder.h"
#include "tests/support/tensor_file.h"

namespace sluice::inferd {
namespace {

// Writes a folder whose model is a copy of its MTP layer: the file holds the latter alone.
void AddModelLayer(const std::string& from, const std::string& to) {
  std::filesystem::create_directories(to);
  std::filesystem::copy_file(from + "/config.json", to + "/config.json");
  TensorFile file(from + "/model.safetensors");
  file.CopyLayer("model.layers.1.", "model.layers.0.");
  ASSERT_TRUE(file.Write(to + "/model.safetensors").ok());
}

struct Case {
  const char* name;
  uint32_t threads;         // 0: the reference backend
  bool whole = true;        // the file holds the model too
  uint64_t delay_seed = 0;  // not 0: an asynchronous device
  bool gguf = false;        // the folder is converted to a GGUF file first
};

class MtpGoldenTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const std::string source = absl::StrCat("tests/data/mtp/", GetParam().name);
    golden_ = std::make_unique<TensorFile>(source + "/golden.safetensors");
    if (!GetParam().whole) {
      AddModelLayer(source, dir_.File("model"));
    }
    std::string model = GetParam().whole ? source : dir_.File("model");
    if (GetParam().gguf) {
      const absl::Status written = WriteGgufOfFolder(model, dir_.File("model.gguf"));
      ASSERT_TRUE(written.ok()) << written;
      model = dir_.File("model.gguf");
    }
    const absl::Status packed = PackFolder(model, dir_.File("pack"));
    ASSERT_TRUE(packed.ok()) << packed;
    EngineOptions options;
    options.kv = KvType::kF32;
    options.context = 128;
    options.parallel = 2;
    options.speculate = SpeculateMode::kMtp;
    client_ = *FakeWeightClient::Open(dir_.File("pack"), {});
    config_ = client_->pack().config();
    const absl::StatusOr<EnginePlan> plan = PlanEngine(options, config_);
    ASSERT_TRUE(plan.ok()) << plan.status();
    registry_ = std::make_unique<RequestRegistry>(QueueLimits());
    absl::StatusOr<std::unique_ptr<EngineCore>> core =
        EngineCore::Create(*plan, *ChoosePoliciesFor(options, client_->pack()), client_.get(),
                           Devices(plan->backend), registry_.get());
    ASSERT_TRUE(core.ok()) << core.status();
    core_ = *std::move(core);
  }

  static ComputeDevices Devices(const BackendLimits& limits) {
    ComputeDevices devices;
    devices.device = GetParam().threads == 0 ? *CreateReferenceBackend(limits)
                                             : *CreateCpuBackend(limits, GetParam().threads);
    if (GetParam().delay_seed != 0) {
      devices.device = std::make_unique<DelayedBackend>(std::move(devices.device), limits,
                                                        DelayOptions{.seed = GetParam().delay_seed});
    }
    return devices;
  }

  // Calls `test` with a forward pass of the engine's parts.
  template <typename Test>
  void Run(const Test& test) {
    const absl::Status status = core_->RunControlTask([&](const ModelParts& parts, uint64_t step) {
      parts_ = &parts;
      ASSIGN_OR_RETURN(kv_, KvCache::Create(config_, KvType::kF32, /*pages=*/8, /*slots=*/2, /*context=*/128,
                                            parts.backend));
      ASSIGN_OR_RETURN(states_, RecurrentStates::Create(config_, 2, /*kept=*/0, parts.backend));
      ASSIGN_OR_RETURN(sparsity_, SparsityPolicy::Create({}, config_, "", ""));
      ASSIGN_OR_RETURN(forward_,
                       Forward::Create(config_, parts.plan->forward,
                                       {parts.backend, parts.weights, kv_.get(), states_.get(), parts.experts,
                                        parts.residency, &routing_, sparsity_.get()}));
      parts.experts->BeginStep({.number = step});
      test();
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
  }

  // Device memory with these rows of `hidden` values.
  Rows Upload(const std::vector<float>& values) {
    const BufferId buffer =
        *parts_->backend->Allocate(values.size() * sizeof(float), BufferKind::kActivations);
    const Rows rows = {{buffer, 0}, config_.hidden};
    EXPECT_TRUE(
        parts_->backend->queue().Upload(values.data(), values.size() * sizeof(float), rows.base).ok());
    return rows;
  }

  void ExpectNear(absl::Span<const float> got, absl::Span<const float> want) {
    ASSERT_EQ(got.size(), want.size());
    float worst = 0;
    for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::abs(got[i] - want[i]));
    EXPECT_LE(worst, 2e-3f);
  }

  static int32_t BestOf(const std::vector<float>& logits) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  // Logits of each layer where the model has seen input[0, at), and input[at] is the next token: all
  // positions at once, from the golden hidden states, and the layers' own drafts.
  std::vector<std::vector<float>> DirectLogits(uint32_t at) {
    const std::vector<int32_t> input = golden_->Ids("input_ids");
    const Rows hidden = Upload(golden_->Values<float>("hidden"));
    const Rows out = Upload(std::vector<float>(input.size() * config_.hidden));
    std::vector<int32_t> tokens(input.begin(), input.begin() + at + 1);
    std::vector<std::vector<float>> all;
    StepBatch batch(64, 1);
    EXPECT_TRUE(kv_->pages().Grow(0, 64));
    for (uint32_t layer = 0; layer < config_.mtp_layers; ++layer) {
      batch.Clear(0);
      batch.Add(absl::MakeConstSpan(tokens).subspan(1 + layer),
                {.first_position = 0, .pages = kv_->pages().table(0)});
      EXPECT_EQ(batch.tokens(), at);
      const absl::Status ran = forward_->RunMtp(layer, layer == 0 ? hidden : out, {}, out, &batch);
      EXPECT_TRUE(ran.ok()) << ran;
      const uint32_t last[] = {at - 1};
      const absl::StatusOr<LogitRows> logits = forward_->MtpLogits(out, last, 1, /*whole=*/true);
      EXPECT_TRUE(logits.ok()) << logits.status();
      all.emplace_back(logits->logits, logits->logits + config_.vocab);
      EXPECT_EQ(BestOf(all.back()), logits->ids[0]);
      tokens.push_back(logits->ids[0]);
    }
    return all;
  }

  TempDir dir_;
  std::unique_ptr<TensorFile> golden_;
  std::unique_ptr<FakeWeightClient> client_;
  ModelConfig config_;
  std::unique_ptr<RequestRegistry> registry_;
  std::unique_ptr<EngineCore> core_;
  const ModelParts* parts_ = nullptr;
  TopKRouting routing_;
  std::unique_ptr<SparsityPolicy> sparsity_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<RecurrentStates> states_;
  std::unique_ptr<Forward> forward_;
};

TEST_P(MtpGoldenTest, LogitsOfDraftsAreRight) {
  Run([this] {
    const std::vector<int32_t> draft_at = golden_->Ids("draft_at");
    const std::vector<int32_t> draft_ids = golden_->Ids("draft_ids");
    const std::vector<float> want = golden_->Values<float>("draft_logits");
    ASSERT_EQ(draft_ids.size(), draft_at.size() * config_.mtp_layers);
    for (size_t i = 0; i < draft_at.size(); ++i) {
      const std::vector<std::vector<float>> logits = DirectLogits(static_cast<uint32_t>(draft_at[i]));
      ASSERT_EQ(logits.size(), config_.mtp_layers);
      for (uint32_t layer = 0; layer < config_.mtp_layers; ++layer) {
        const size_t row = i * config_.mtp_layers + layer;
        ExpectNear(logits[layer], absl::MakeConstSpan(want).subspan(row * config_.vocab, config_.vocab));
        EXPECT_EQ(BestOf(logits[layer]), draft_ids[row]);
      }
    }
  });
}

// Cases whose file has the model's own layers, too.
class MtpModelGoldenTest : public MtpGoldenTest {};

// The model's own hidden states, in steps of a few rows whose last ones are taken back and computed again.
TEST_P(MtpModelGoldenTest, DrafterMakesTheGoldenTokens) {
  Run([this] {
    const std::vector<int32_t> input = golden_->Ids("input_ids");
    const std::vector<int32_t> draft_at = golden_->Ids("draft_at");
    const std::vector<int32_t> draft_ids = golden_->Ids("draft_ids");
    const absl::StatusOr<std::unique_ptr<MtpDrafter>> made =
        MtpDrafter::Create(config_, parts_->plan->forward, forward_.get(), kv_.get(), parts_->backend);
    ASSERT_TRUE(made.ok()) << made.status();
    MtpDrafter& drafter = **made;
    const bool recurrent = StateBytesPerSequence(config_) > 0;
    StepBatch batch(64, 1);
    ASSERT_TRUE(kv_->pages().Grow(1, 64));
    uint32_t done = 0;
    for (size_t i = 0; i < draft_at.size(); ++i) {
      const uint32_t at = static_cast<uint32_t>(draft_at[i]);
      while (done < at) {
        const uint32_t known = std::min(at - done, 5u);
        const uint32_t wrong = recurrent ? 0 : 2;  // rows of drafts
        std::vector<int32_t> rows(input.begin() + done, input.begin() + done + known);
        rows.insert(rows.end(), wrong, 7);
        batch.Clear(0);
        batch.Add(rows, {.first_position = done, .pages = kv_->pages().table(1), .state = states_->slots(1)});
        ASSERT_TRUE(forward_->Run(&batch).ok());
        ASSERT_TRUE(forward_->Await().ok());
        states_->Commit(1);
        const absl::Span<const int32_t> tokens = absl::MakeConstSpan(input).first(done + known + 1);
        ASSERT_TRUE(drafter.Keep({3, 1, tokens}, 0, known + wrong, done).ok());
        done += known;
      }
      const MtpDrafter::Request request = {{3, 1, absl::MakeConstSpan(input).first(at + 1)},
                                           config_.mtp_layers};
      Draft draft;
      const absl::Status proposed = drafter.Propose({&request, 1}, {&draft, 1});
      ASSERT_TRUE(proposed.ok()) << proposed;
      ASSERT_EQ(draft.count, config_.mtp_layers);
      for (uint32_t layer = 0; layer < config_.mtp_layers; ++layer) {
        EXPECT_EQ(draft.tokens[layer], draft_ids[i * config_.mtp_layers + layer]) << i << " " << layer;
      }
    }
  });
}

// Rows of the head behind the final norm are what the golden layers were given.
TEST_P(MtpModelGoldenTest, HiddenStatesAreRight) {
  Run([this] {
    const std::vector<int32_t> input = golden_->Ids("input_ids");
    const std::vector<float> want = golden_->Values<float>("hidden");
    StepBatch batch(64, 1);
    ASSERT_TRUE(kv_->pages().Grow(0, 64));
    batch.Add(input, {.first_position = 0, .pages = kv_->pages().table(0), .state = states_->slots(0)});
    ASSERT_TRUE(forward_->Run(&batch).ok());
    const Rows to = Upload(std::vector<float>(want.size()));
    ASSERT_TRUE(forward_->QueueHidden(0, batch.tokens(), to).ok());
    std::vector<float> got(want.size());
    ASSERT_TRUE(parts_->backend->queue().Download(to.base, got.size() * sizeof(float), got.data()).ok());
    ASSERT_TRUE(forward_->Await().ok());
    ExpectNear(got, want);
  });
}

std::vector<Case> CasesOf(const char* name, bool whole) {
  return {{name, 0, whole}, {name, 2, whole}, {name, 1, whole, /*delay_seed=*/5}};
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  return absl::StrCat(info.param.name, "_", info.param.threads, "_threads",
                      info.param.delay_seed > 0 ? "_later" : "", info.param.gguf ? "_gguf" : "");
}

INSTANTIATE_TEST_SUITE_P(Step, MtpGoldenTest, testing::ValuesIn(CasesOf("step3p5", /*whole=*/true)), NameOf);
INSTANTIATE_TEST_SUITE_P(DeepSeek, MtpGoldenTest, testing::ValuesIn(CasesOf("deepseek_v3", /*whole=*/false)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Gguf, MtpGoldenTest,
                         testing::Values(Case{"deepseek_v3", 2, /*whole=*/false, 0, /*gguf=*/true}), NameOf);
INSTANTIATE_TEST_SUITE_P(Step, MtpModelGoldenTest, testing::ValuesIn(CasesOf("step3p5", /*whole=*/true)),
                         NameOf);

}  // namespace
}  // namespace sluice::inferd
