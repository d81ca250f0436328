// `exact`: the logits of a sequence depend on its token ids alone. Random draws of everything that must not
// matter: DRAM and KV budget, threads and backend, synchronous or not, batch, prefill chunk, prefetch,
// faults, deaths of weightd, cached prefixes, and speculation.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>

#include "common/base/file_io.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "gtest/gtest.h"
#include "inferd/cache/slab_plan.h"
#include "inferd/model/kv_cache.h"
#include "inferd/model/model_shapes.h"
#include "inferd/model/recurrent_states.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kVocab = 96;
constexpr char kByOutputs[] = "up|gate|outputs";

uint32_t Draws(uint32_t in_ci) {
  const char* stress = std::getenv("SLUICE_STRESS");
  return stress != nullptr && std::string(stress) == "full" ? 40 * in_ci : in_ci;
}

std::vector<int32_t> RandomIds(std::mt19937* random, size_t count) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) {
    id = static_cast<int32_t>((*random)() % kVocab);
  }
  return ids;
}

template <typename T>
T OneOf(std::mt19937* random, std::initializer_list<T> values) {
  return *(values.begin() + (*random)() % values.size());
}

struct Case {
  const char* name;
  TinyModelSpec model;
  const char* bits;
  std::string family = "";  // not empty: tests/data/tiny has the model
  std::string change = "";  // members of its config.json to set, as JSON
  uint32_t draws = 6;
  std::string layout = "";  // empty: by neurons
};

TinyModelSpec Model(uint32_t experts, uint32_t top_k, uint32_t window) {
  TinyModelSpec spec;
  spec.vocab = kVocab;
  spec.hidden = 48;
  spec.layers = 3;
  spec.heads = 6;
  spec.kv_heads = 3;
  spec.head_dim = 16;
  spec.experts = experts;
  spec.top_k = top_k;
  spec.width = 80;
  spec.sliding_window = window;
  spec.tied = window > 0;
  return spec;
}

class ExactTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kInputs = 4;

  void SetUp() override {
    pack_ = dir_.File("pack");
    const std::string model = dir_.File("model");
    const absl::Status written =
        GetParam().family.empty() ? WriteTinyModel(GetParam().model, model) : CopyFamily(model);
    ASSERT_TRUE(written.ok()) << written;
    const absl::Status packed = PackFolder(model, pack_, GetParam().bits, GetParam().layout);
    ASSERT_TRUE(packed.ok()) << packed;
    std::mt19937 random(5);
    for (int i = 0; i < kInputs; ++i) {
      inputs_.push_back(RandomIds(&random, 20 + 31 * i));
    }
    // Two prompts that diverge within a page, after two whole ones.
    std::copy_n(inputs_[2].begin(), 77, inputs_[3].begin());
  }

  // The family's folder, with its config changed.
  static absl::Status CopyFamily(const std::string& model) {
    const std::string source = "tests/data/tiny/" + GetParam().family;
    std::filesystem::create_directory(model);
    std::filesystem::copy(source + "/model.safetensors", model);
    ASSIGN_OR_RETURN(const std::string text, ReadFile(source + "/config.json", 1 << 20));
    if (GetParam().change.empty()) {
      return WriteFileDurably(model + "/config.json", text);
    }
    nlohmann::json config = nlohmann::json::parse(text);
    config.update(nlohmann::json::parse(GetParam().change));
    if (config.contains("indexer_types")) {
      RETURN_IF_ERROR(AddIndexers(model, config));
    }
    return WriteFileDurably(model + "/config.json", config.dump());
  }

  // Adds a second file with the tensors of the indexers that the config names.
  static absl::Status AddIndexers(const std::string& model, const nlohmann::json& config) {
    std::mt19937 random(6);
    TinyTensors tensors;
    const auto add = [&](const std::string& name, const std::vector<uint64_t>& shape, float mean,
                         float deviation) {
      std::normal_distribution<float> values(mean, deviation);
      TinyTensor& tensor = tensors[name];
      tensor.shape = shape;
      tensor.values.resize(shape[0] * (shape.size() == 2 ? shape[1] : 1));
      std::generate(tensor.values.begin(), tensor.values.end(), [&] { return values(random); });
    };
    const uint64_t heads = config["index_n_heads"];
    const uint64_t dim = config["index_head_dim"];
    const uint64_t hidden = config["hidden_size"];
    const uint64_t rank = config["q_lora_rank"];
    for (size_t layer = 0; layer < config["indexer_types"].size(); ++layer) {
      if (config["indexer_types"][layer] == "shared") {
        continue;
      }
      const std::string base = absl::StrCat("model.layers.", layer, ".self_attn.indexer.");
      add(base + "wq_b.weight", {heads * dim, rank}, 0, 0.2f);
      add(base + "wk.weight", {dim, hidden}, 0, 0.12f);
      add(base + "k_norm.weight", {dim}, 1, 0.1f);
      add(base + "k_norm.bias", {dim}, 0, 0.1f);
      add(base + "weights_proj.weight", {heads, hidden}, 0, 0.12f);
    }
    // A folder with model.safetensors has no other files of tensors.
    std::filesystem::rename(model + "/model.safetensors", model + "/others.safetensors");
    ASSIGN_OR_RETURN(const std::string first, ReadFile(model + "/others.safetensors", 1 << 24));
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, first.data(), sizeof(header_bytes));
    const nlohmann::json header = nlohmann::json::parse(first.substr(8, header_bytes));
    nlohmann::json index;
    for (const auto& [name, unused] : header.items()) {
      index["weight_map"][name] = "others.safetensors";
    }
    index["weight_map"].erase("__metadata__");
    for (const auto& [name, unused] : tensors) {
      index["weight_map"][name] = "indexers.safetensors";
    }
    RETURN_IF_ERROR(
        WriteFileDurably(model + "/indexers.safetensors", SafetensorsBytes(tensors, ElementType::kBf16)));
    return WriteFileDurably(model + "/model.safetensors.index.json", index.dump());
  }

  // Results of the reference backend with everything in DRAM, one request at a time.
  struct Wanted {
    std::vector<std::vector<float>> logits;
    std::vector<std::vector<int32_t>> greedy;
    // The next turn: all candidates of every token, equivalent to its logits.
    std::vector<std::vector<int32_t>> next_prompts;
    std::vector<std::vector<TokenOut>> next_tokens;
  };
  static GenerateSpec NextTurn(const std::string& id, const std::vector<int32_t>& prompt) {
    GenerateSpec spec = GreedySpec(id, prompt, 9);
    spec.logprobs = kVocab - 1;
    return spec;
  }
  const Wanted& WantedFor(KvType kv) {
    Wanted& wanted = wanted_[kv];
    if (!wanted.logits.empty()) {
      return wanted;
    }
    TestEngineOptions options;
    options.engine.kv = kv;
    options.engine.parallel = 1;
    options.engine.prefetch = false;
    options.engine.prefix_cache = false;
    options.engine.max_logprobs = kVocab - 1;
    absl::StatusOr<TestEngine> test = StartEngine(pack_, options);
    EXPECT_TRUE(test.ok()) << test.status();
    for (int i = 0; i < kInputs; ++i) {
      wanted.logits.push_back(*ScoreLogits(test->engine.get(), "s", inputs_[i]));
      wanted.greedy.push_back(*GenerateIds(test->engine.get(), GreedySpec("g", inputs_[i], 12)));
    }
    std::mt19937 random(6);
    for (int i = 0; i < kInputs; ++i) {
      // All, some or none of the answer's tokens, then the user's next message.
      std::vector<int32_t> next = inputs_[i];
      next.insert(next.end(), wanted.greedy[i].begin(), wanted.greedy[i].end() - 4 * (i % 3));
      const std::vector<int32_t> said = RandomIds(&random, 1 + 13 * i);
      next.insert(next.end(), said.begin(), said.end());
      wanted.next_prompts.push_back(next);
      auto sink = std::make_shared<CollectingSink>();
      EXPECT_TRUE(test->engine->Generate(NextTurn("n", next), sink).ok());
      EXPECT_TRUE(sink->Await().ok());
      EXPECT_EQ(sink->info().usage.cached_prompt_tokens, 0u);
      wanted.next_tokens.push_back(sink->tokens());
    }
    return wanted;
  }

  static void Speculate(std::mt19937* random, TestEngineOptions* options);
  void RunDraw(uint32_t draw);
  // Runs a draw on a device with random budget, link and tile size.
  void RunSimDraw(uint32_t draw);
  void RunRequests(TestEngine* test, const Wanted& wanted, bool next_turns);
  void RunNextTurns(TestEngine* test, const Wanted& wanted);
  static void ExpectSame(const std::vector<TokenOut>& tokens, const std::vector<TokenOut>& wanted);

  TempDir dir_;
  std::string pack_;
  std::vector<std::vector<int32_t>> inputs_;
  std::map<KvType, Wanted> wanted_;
  uint64_t cached_tokens_ = 0;  // sum of all draws
};

// Drafts in two of three draws.
void ExactTest::Speculate(std::mt19937* random, TestEngineOptions* options) {
  options->engine.speculate =
      OneOf(random, {SpeculateMode::kOff, SpeculateMode::kAuto, SpeculateMode::kAuto});
  options->engine.drafts = OneOf(random, {1u, 3u, 8u});
}

void ExactTest::RunDraw(uint32_t draw) {
  std::mt19937 random(1000 + draw);
  TestEngineOptions options;
  options.threads = OneOf(&random, {0u, 1u, 1u, 2u, 2u});
  if (draw % 16 == 5) {
    options.threads = 64;  // more than there are CPUs, tiles or rows
  }
  options.engine.max_prefill_chunk = draw % 2 == 0 ? 128 : 0;
  options.engine.kv = OneOf(&random, {KvType::kF32, KvType::kF16, KvType::kQ8});
  options.engine.parallel = 1 + random() % 6;
  options.engine.prefill_chunk = OneOf(&random, {1u, 3u, 7u, 16u, 33u, 64u, 512u});
  options.engine.prefetch = random() % 2 == 0;
  options.engine.context = 256;
  options.engine.prefix_cache = random() % 5 != 0;
  options.engine.max_logprobs = kVocab - 1;
  const std::unique_ptr<Pack> pack = *Pack::Open(pack_);
  if (random() % 2 == 0) {  // pages for one context and little more: sequences are preempted
    const uint64_t pages = KvPages::PagesFor(options.engine.context) + random() % 6;
    options.engine.kv_budget = pages * KvBytesPerPage(pack->config(), options.engine.kv) +
                               options.engine.parallel * StateBytesPerSequence(pack->config()) +
                               random() % 2 * 20 * StateBytes(pack->config());
  }
  const uint64_t smallest = SmallestBudget(pack_, std::max(1u, options.threads));
  const uint64_t all = pack->dense_bytes() + pack->total_expert_bytes();
  options.weights.dram_budget =
      std::max(smallest, OneOf(&random, {all, all / 2, all / 4, smallest, smallest}));
  options.weights.seed = draw;
  options.weights.max_delay_polls = OneOf(&random, {0u, 0u, 2u, 9u});
  options.weights.no_room_chance = OneOf(&random, {0.0, 0.0, 0.15});
  options.weights.evict_chance = OneOf(&random, {0.0, 0.2});
  options.weights.ring_entries = OneOf(&random, {4u, 64u});
  const Wanted& wanted = WantedFor(options.engine.kv);
  options.delay_seed = draw % 8 == 1 ? draw : 0;
  Speculate(&random, &options);

  absl::StatusOr<TestEngine> test = StartEngine(pack_, options);
  ASSERT_TRUE(test.ok()) << test.status();
  if (random() % 4 == 0) {
    test->client->DisconnectAfterPolls(random() % 200);
  }
  RunRequests(&*test, wanted, /*next_turns=*/draw % 2 == 0);
}

void ExactTest::RunSimDraw(uint32_t draw) {
  std::mt19937 random(5000 + draw);
  const std::unique_ptr<Pack> pack = *Pack::Open(pack_);
  TestEngineOptions options;
  options.threads = OneOf(&random, {0u, 1u, 2u});
  options.engine.kv = OneOf(&random, {KvType::kF16, KvType::kQ8});
  options.engine.parallel = OneOf(&random, {1u, 8u});
  options.engine.prefill_chunk = OneOf(&random, {1u, 16u, 64u, 512u});
  options.engine.prefetch = random() % 2 == 0;
  options.engine.context = 256;
  options.engine.max_logprobs = kVocab - 1;
  options.engine.stall_limit = absl::Seconds(60);  // a loaded machine must not fail the test
  options.engine.weightd_grace = absl::Seconds(60);
  options.engine.device = DeviceKind::kSim;
  SlabOptions& device = options.engine.slab;
  const uint64_t least = SmallestDeviceBudget(*pack);
  const uint64_t most = pack->total_expert_bytes();
  device.budget = OneOf(&random, {least, least, least + random() % (most - least + 1), most, uint64_t{0}});
  options.engine.virtual_clock = random() % 3 == 0;
  options.engine.costs.link_ms = OneOf(&random, {0.0, 0.5, 15.0});
  options.engine.policies.policy = {
      absl::StrCat("expert_miss=", OneOf(&random, {"load", "load", "cpu", "balance"})),
      absl::StrCat("expert_predictor=",
                   AnyScalesInputs(pack->config())
                       ? "gate_reuse"
                       : OneOf(&random, {"gate_reuse", "lookahead", "lookahead", "none"}))};
  options.engine.policies.policy.push_back(absl::StrCat("predictor_depth=", OneOf(&random, {"1", "2", "3"})));
  device.link_latency_us = OneOf(&random, {0.0, 40.0});
  device.tile_neurons = OneOf(&random, {0u, 64u, 128u, 1024u});
  device.transport = draw % 3 == 0 ? Transport::kPull : Transport::kPush;
  const uint64_t smallest = SmallestBudget(pack_, std::max(1u, options.threads));
  options.weights.dram_budget = std::max(
      smallest, OneOf(&random, {pack->dense_bytes() + most, pack->dense_bytes() + most / 2, smallest}));
  options.weights.seed = draw;
  options.weights.max_delay_polls = OneOf(&random, {0u, 1u, 3u, 9u});  // the link's rate
  options.weights.no_room_chance = OneOf(&random, {0.0, 0.0, 0.1});
  options.weights.evict_chance = OneOf(&random, {0.0, 0.2});
  options.weights.ring_entries = OneOf(&random, {4u, 64u});
  const Wanted& wanted = WantedFor(options.engine.kv);
  options.delay_seed = draw % 2 == 1 && !options.engine.virtual_clock ? draw : 0;
  Speculate(&random, &options);
  absl::StatusOr<TestEngine> test = StartEngine(pack_, options);
  ASSERT_TRUE(test.ok()) << test.status();
  if (random() % 4 == 0) {
    test->client->DisconnectAfterPolls(random() % 300);
  }
  RunRequests(&*test, wanted, /*next_turns=*/draw % 2 == 0);
}

void ExactTest::RunRequests(TestEngine* test, const Wanted& wanted, bool next_turns) {
  std::vector<std::shared_ptr<CollectingScoreSink>> scores;
  std::vector<std::shared_ptr<CollectingSink>> answers;
  for (int i = 0; i < kInputs; ++i) {
    ScoreSpec spec;
    spec.request_id = absl::StrCat("s", i);
    spec.input = inputs_[i];
    spec.want_logits = true;
    scores.push_back(std::make_shared<CollectingScoreSink>());
    ASSERT_TRUE(test->engine->Score(spec, scores.back()).ok());
    answers.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(
        test->engine->Generate(GreedySpec(absl::StrCat("g", i), inputs_[i], 12), answers.back()).ok());
  }
  for (int i = 0; i < kInputs; ++i) {
    ASSERT_TRUE(scores[i]->Await().ok()) << scores[i]->Await();
    ASSERT_EQ(scores[i]->logits(), wanted.logits[i]) << "input " << i;
    ASSERT_TRUE(answers[i]->Await().ok()) << answers[i]->Await();
    ASSERT_EQ(answers[i]->ids(), wanted.greedy[i]) << "input " << i;
  }
  if (next_turns) {
    ASSERT_NO_FATAL_FAILURE(RunNextTurns(test, wanted));
  }
  const EngineStats stats = AwaitQuiet(*test->engine);
  EXPECT_EQ(stats.kv_pages_used, 0u);
  EXPECT_EQ(stats.expert_leases_held, 0u);
  EXPECT_EQ(test->client->violation(), "");
}

// Runs all requests at once, then again: the second time most of each prompt is cached.
void ExactTest::RunNextTurns(TestEngine* test, const Wanted& wanted) {
  for (const char* round : {"n", "m"}) {
    std::vector<std::shared_ptr<CollectingSink>> answers;
    for (int i = 0; i < kInputs; ++i) {
      answers.push_back(std::make_shared<CollectingSink>());
      const GenerateSpec spec = NextTurn(absl::StrCat(round, i), wanted.next_prompts[i]);
      ASSERT_TRUE(test->engine->Generate(spec, answers.back()).ok());
    }
    for (int i = 0; i < kInputs; ++i) {
      ASSERT_TRUE(answers[i]->Await().ok()) << answers[i]->Await();
      cached_tokens_ += answers[i]->info().usage.cached_prompt_tokens;
      ASSERT_NO_FATAL_FAILURE(ExpectSame(answers[i]->tokens(), wanted.next_tokens[i]))
          << "turn " << round << i;
    }
  }
}

void ExactTest::ExpectSame(const std::vector<TokenOut>& tokens, const std::vector<TokenOut>& wanted) {
  ASSERT_EQ(tokens.size(), wanted.size());
  for (size_t t = 0; t < tokens.size(); ++t) {
    ASSERT_EQ(tokens[t].token_id, wanted[t].token_id) << "token " << t;
    ASSERT_EQ(tokens[t].logprob, wanted[t].logprob) << "token " << t;
    for (size_t c = 0; c < wanted[t].candidates.size(); ++c) {
      ASSERT_EQ(tokens[t].candidates[c].token_id, wanted[t].candidates[c].token_id) << "token " << t;
      ASSERT_EQ(tokens[t].candidates[c].logprob, wanted[t].candidates[c].logprob) << "token " << t;
    }
  }
}

TEST_P(ExactTest, LogitsAreBitEqualInAnySurrounding) {
  for (uint32_t draw = 0; draw < Draws(GetParam().draws); ++draw) {
    RunDraw(draw);
    ASSERT_FALSE(HasFailure()) << "draw " << draw;
  }
  EXPECT_GT(cached_tokens_, 0u) << "nothing was reused";
}

TEST_P(ExactTest, SimulatedDeviceLogitsEqualTheHosts) {
  for (uint32_t draw = 0; draw < (Draws(GetParam().draws) + 3) / 4; ++draw) {
    RunSimDraw(draw);
    ASSERT_FALSE(HasFailure()) << "draw " << draw;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExactTest,
                         testing::Values(Case{"Mixtral", Model(8, 2, 0), "bf16"},
                                         Case{"ByOutputs", Model(8, 2, 0), "q8", "", "", 6, kByOutputs},
                                         Case{"FiveExpertsTop3", Model(5, 3, 0), "q8"},
                                         Case{"SlidingWindow", Model(4, 1, 40), "f16"},
                                         Case{"ManyExperts", Model(32, 4, 0), "bf16"}),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

Case ByOutputs(const char* name, const char* family, const char* bits) {
  return {name, {}, bits, family, "", /*draws=*/2, kByOutputs};
}

Case Family(const char* name, const char* family, const char* bits, const char* change = "") {
  return {name, {}, bits, family, change, /*draws=*/2};
}

// Sequences of 20 to 125 tokens cross the limit of the short rope table while they generate.
constexpr char kLongRope[] = R"({"original_max_position_embeddings": 25, "rope_parameters": {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 25,
    "short_factor": [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7], "long_factor": [1, 1.5, 2, 2.5, 3, 4, 5, 6],
    "short_mscale": 1.1, "long_mscale": 1.3}})";

// The second layer takes the choice of the first one.
constexpr char kIndexers[] = R"({"model_type": "glm_moe_dsa", "architectures": ["GlmMoeDsaForCausalLM"],
    "index_topk": 6, "index_head_dim": 16, "index_n_heads": 5, "indexer_types": ["full", "shared", "full"]})";

INSTANTIATE_TEST_SUITE_P(
    Families, ExactTest,
    testing::Values(
        Family("DeepSeekV2", "deepseek_v2", "bf16"), Family("DeepSeekV3", "deepseek_v3", "q8"),
        Family("Glm4Moe", "glm4_moe", "bf16"), Family("GptOss", "gpt_oss", "bf16"),
        Family("GraniteMoe", "granitemoe", "q4"), Family("Llama4", "llama4", "bf16"),
        Family("Olmoe", "olmoe", "bf16"), Family("PhiMoe", "phimoe", "bf16"),
        Family("PhiMoeLongRope", "phimoe", "q8", kLongRope), Family("Qwen2Moe", "qwen2_moe", "bf16"),
        Family("Qwen3Moe", "qwen3_moe", "q8"), Family("Qwen35Moe", "qwen3_5_moe", "bf16"),
        Family("Qwen3Next", "qwen3_next", "q8"), Family("Gemma4", "gemma4", "bf16"),
        Family("Afmoe", "afmoe", "q4"), Family("Mistral4", "mistral4", "bf16"),
        Family("Hunyuan", "hunyuan_v1_moe", "bf16"), Family("Ernie45", "ernie4_5_moe", "q8"),
        Family("NemotronH", "nemotron_h", "bf16"),
        // Shared and dense experts, biases, scaled inputs, a dense part beside, no gates.
        ByOutputs("DeepSeekV3ByOutputs", "deepseek_v3", "q4"),
        ByOutputs("GptOssByOutputs", "gpt_oss", "bf16"), ByOutputs("Llama4ByOutputs", "llama4", "q8"),
        ByOutputs("Gemma4ByOutputs", "gemma4", "bf16"), ByOutputs("NemotronHByOutputs", "nemotron_h", "q8"),
        Family("GraniteHybrid", "granitemoehybrid", "q8"), Family("Lfm2", "lfm2_moe", "bf16"),
        Family("Laguna", "laguna", "q8"), Family("Step", "step3p5", "bf16"),
        Family("Mimo", "mimo_v2_flash", "q4"), Family("Cohere2", "cohere2_moe", "q8"),
        Family("FlexOlmo", "flex_olmo", "bf16"), Family("NemotronLatent", "nemotron_h_latent", "q8"),
        Family("Longcat", "longcat_flash", "bf16"), Family("Jamba", "jamba", "q8"),
        Family("KimiLinear", "kimi_linear", "q4"), Family("Ling3", "bailing_hybrid", "bf16"),
        Family("Indexers", "deepseek_v3", "q8", kIndexers), Family("MinimaxM3", "minimax_m3", "bf16"),
        Family("Qwen4Exp", "qwen4_exp", "bf16")),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace sluice::inferd
