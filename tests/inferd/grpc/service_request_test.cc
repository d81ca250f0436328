#include "inferd/grpc/service_request.h"

#include <functional>
#include <limits>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/text/tokenizer.h"
#include "gtest/gtest.h"

namespace sluice::inferd {
namespace {

using inference::v1::GenerationSpec;
using inference::v1::ScoreRequest;

class ServiceRequestTest : public testing::Test {
 protected:
  ServiceRequestTest() {
    context_.model.id = "abc";
    context_.model.name = "tiny";
    context_.model.vocab = 100;
    context_.model.context = 16;
  }
  static GenerationSpec Spec() {
    GenerationSpec spec;
    for (const uint32_t id : {1, 2, 3}) {
      spec.mutable_token_ids()->add_ids(id);
    }
    return spec;
  }
  absl::StatusOr<GenerationPlan> Plan(const GenerationSpec& spec) {
    return PlanGeneration(context_, call_, spec);
  }
  GenerationPlan Good(const GenerationSpec& spec) {
    auto plan = Plan(spec);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *std::move(plan) : GenerationPlan();
  }

  ServingContext context_;
  CallFacts call_;
};

TEST_F(ServiceRequestTest, UnsetFieldsAreGreedyAndFillTheContext) {
  const GenerationPlan plan = Good(Spec());
  EXPECT_EQ((std::vector<int32_t>{1, 2, 3}), plan.spec.prompt);
  EXPECT_EQ(0.0f, plan.spec.sampling.temperature);
  EXPECT_EQ(1.0f, plan.spec.sampling.top_p);
  EXPECT_EQ(0u, plan.spec.sampling.top_k);
  EXPECT_EQ(1.0f, plan.spec.sampling.repetition_penalty);
  EXPECT_FALSE(plan.spec.sampling.seed.has_value());
  EXPECT_EQ(13u, plan.spec.stopping.max_tokens);
  EXPECT_FALSE(plan.spec.stopping.ignore_eos);
  EXPECT_TRUE(plan.report.text);
  EXPECT_TRUE(plan.report.token_ids);
  EXPECT_FALSE(plan.report.logprobs);
}

TEST_F(ServiceRequestTest, ModelDefaultsApplyToUnsetFieldsOnly) {
  context_.model.generation.do_sample = true;
  context_.model.generation.temperature = 0.6;
  context_.model.generation.top_p = 0.9;
  context_.model.generation.top_k = 40;
  context_.model.generation.repetition_penalty = 1.1;
  const GenerationPlan unset = Good(Spec());
  EXPECT_FLOAT_EQ(0.6f, unset.spec.sampling.temperature);
  EXPECT_FLOAT_EQ(0.9f, unset.spec.sampling.top_p);
  EXPECT_EQ(40u, unset.spec.sampling.top_k);
  EXPECT_FLOAT_EQ(1.1f, unset.spec.sampling.repetition_penalty);

  GenerationSpec zeroes = Spec();
  zeroes.mutable_sampling()->set_temperature(0);
  zeroes.mutable_sampling()->set_top_k(0);
  zeroes.mutable_sampling()->set_top_p(1);
  zeroes.mutable_sampling()->set_seed(0);
  const GenerationPlan set = Good(zeroes);
  EXPECT_EQ(0.0f, set.spec.sampling.temperature);
  EXPECT_EQ(0u, set.spec.sampling.top_k);
  EXPECT_EQ(1.0f, set.spec.sampling.top_p);
  EXPECT_EQ(0u, set.spec.sampling.seed);
}

TEST_F(ServiceRequestTest, ModelTemperatureAppliesOnlyIfModelSamples) {
  context_.model.generation.temperature = 0.6;
  EXPECT_EQ(0.0f, Good(Spec()).spec.sampling.temperature);
  context_.model.generation.do_sample = true;
  context_.model.generation.temperature.reset();
  EXPECT_EQ(1.0f, Good(Spec()).spec.sampling.temperature);
}

TEST_F(ServiceRequestTest, EveryFieldReachesTheEngine) {
  const auto tokenizer = Tokenizer::Load("deploy/sample");  // stop texts need one
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  context_.tokenizer = tokenizer->get();
  GenerationSpec spec = Spec();
  spec.set_model("tiny");
  spec.set_request_id("my-id");
  spec.mutable_sampling()->set_temperature(0.5f);
  spec.mutable_sampling()->set_min_p(0.1f);
  spec.mutable_sampling()->set_frequency_penalty(-1);
  spec.mutable_sampling()->set_presence_penalty(2);
  spec.mutable_sampling()->set_n(1);
  spec.mutable_stopping()->set_max_tokens(5);
  spec.mutable_stopping()->set_min_tokens(2);
  spec.mutable_stopping()->add_stop("\n\n");
  spec.mutable_stopping()->add_stop_token_ids(99);
  spec.mutable_stopping()->set_ignore_eos(true);
  spec.mutable_stopping()->set_include_stop_in_output(true);
  spec.mutable_output()->set_logprobs(3);
  spec.mutable_output()->set_return_text(false);
  spec.mutable_output()->set_return_token_ids(false);
  spec.mutable_output()->set_stream_interval_tokens(4);
  spec.mutable_scheduling()->set_priority(-2);
  call_.client = "owner";
  call_.deadline = absl::FromUnixSeconds(1000);
  const GenerationPlan plan = Good(spec);
  EXPECT_EQ("my-id", plan.spec.request_id);
  EXPECT_EQ("owner", plan.spec.client);
  EXPECT_EQ(absl::FromUnixSeconds(1000), plan.spec.deadline);
  EXPECT_EQ(0.5f, plan.spec.sampling.temperature);
  EXPECT_FLOAT_EQ(0.1f, plan.spec.sampling.min_p);
  EXPECT_EQ(-1.0f, plan.spec.sampling.frequency_penalty);
  EXPECT_EQ(2.0f, plan.spec.sampling.presence_penalty);
  EXPECT_EQ(5u, plan.spec.stopping.max_tokens);
  EXPECT_EQ(2u, plan.spec.stopping.min_tokens);
  EXPECT_EQ(std::vector<std::string>{"\n\n"}, plan.spec.stopping.stop);
  EXPECT_EQ(std::vector<int32_t>{99}, plan.spec.stopping.stop_token_ids);
  EXPECT_TRUE(plan.spec.stopping.ignore_eos);
  EXPECT_TRUE(plan.spec.stopping.include_stop_in_output);
  EXPECT_EQ(3u, plan.spec.logprobs);
  EXPECT_EQ(-2, plan.spec.priority);
  EXPECT_TRUE(plan.report.logprobs);
  EXPECT_FALSE(plan.report.text);
  EXPECT_FALSE(plan.report.token_ids);
  EXPECT_EQ(4u, plan.report.interval_tokens);
}

struct BadCase {
  const char* field;
  absl::StatusCode code;
  const char* reason;
  std::function<void(GenerationSpec*)> edit;
};

TEST_F(ServiceRequestTest, WrongOrUnsupportedFieldIsRefusedByName) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kMissing = absl::StatusCode::kUnimplemented;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const BadCase cases[] = {
      {"spec.prompt", kInvalid, "INVALID_FIELD", [](auto* s) { s->clear_prompt(); }},
      {"spec.token_ids", kInvalid, "INVALID_FIELD", [](auto* s) { s->mutable_token_ids()->clear_ids(); }},
      {"spec.token_ids", kInvalid, "INVALID_FIELD", [](auto* s) { s->mutable_token_ids()->add_ids(100); }},
      {"spec.token_ids", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_token_ids()->add_ids(0xffffffffu); }},
      {"spec.add_special_tokens", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->set_add_special_tokens(true); }},
      {"spec.request_id", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->set_request_id(std::string(129, 'x')); }},
      {"spec.request_id", kInvalid, "INVALID_FIELD", [](auto* s) { s->set_request_id("a b"); }},
      {"spec.request_id", kInvalid, "INVALID_FIELD", [](auto* s) { s->set_request_id("\xc3\xa4"); }},
      {"spec.sampling.temperature", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_sampling()->set_temperature(-0.1f); }},
      {"spec.sampling.temperature", kInvalid, "INVALID_FIELD",
       [=](auto* s) { s->mutable_sampling()->set_temperature(nan); }},
      {"spec.sampling.top_p", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_sampling()->set_top_p(0); }},
      {"spec.sampling.top_p", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_sampling()->set_top_p(1.1f); }},
      {"spec.sampling.min_p", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_sampling()->set_min_p(1); }},
      {"spec.sampling.repetition_penalty", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_sampling()->set_repetition_penalty(0); }},
      {"spec.sampling.frequency_penalty", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_sampling()->set_frequency_penalty(2.5f); }},
      {"spec.sampling.presence_penalty", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_sampling()->set_presence_penalty(-2.5f); }},
      {"spec.sampling.n", kInvalid, "INVALID_FIELD", [](auto* s) { s->mutable_sampling()->set_n(0); }},
      {"spec.sampling.n", kMissing, "UNSUPPORTED_FIELD", [](auto* s) { s->mutable_sampling()->set_n(2); }},
      {"spec.sampling.typical_p", kMissing, "UNSUPPORTED_FIELD",
       [](auto* s) { s->mutable_sampling()->set_typical_p(1); }},
      {"spec.sampling.repetition_window", kMissing, "UNSUPPORTED_FIELD",
       [](auto* s) { s->mutable_sampling()->set_repetition_window(0); }},
      {"spec.sampling.logit_bias", kInvalid, "INVALID_FIELD",
       [](auto* s) { (*s->mutable_sampling()->mutable_logit_bias())[3] = 101; }},
      {"spec.sampling.logit_bias", kInvalid, "INVALID_FIELD",
       [](auto* s) { (*s->mutable_sampling()->mutable_logit_bias())[1u << 31] = 1; }},
      {"spec.stopping.max_tokens", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_stopping()->set_max_tokens(0); }},
      {"spec.stopping.max_tokens", kInvalid, "CONTEXT_TOO_LONG",
       [](auto* s) { s->mutable_stopping()->set_max_tokens(14); }},
      {"spec.stopping.min_tokens", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_stopping()->set_min_tokens(14); }},
      {"spec.stopping.stop", kInvalid, "INVALID_FIELD", [](auto* s) { s->mutable_stopping()->add_stop(""); }},
      {"spec.stopping.stop", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_stopping()->add_stop(std::string(1025, 'x')); }},
      {"spec.stopping.stop", kInvalid, "INVALID_FIELD",
       [](auto* s) {
         for (int i = 0; i < 17; ++i) {
           s->mutable_stopping()->add_stop("stop");
         }
       }},
      {"spec.stopping.stop_token_ids", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_stopping()->add_stop_token_ids(100); }},
      {"spec.output.logprobs", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_output()->set_logprobs(21); }},
      {"spec.output.prompt_logprobs", kMissing, "UNSUPPORTED_FIELD",
       [](auto* s) { s->mutable_output()->set_prompt_logprobs(0); }},
      {"spec.output.echo", kMissing, "UNSUPPORTED_FIELD",
       [](auto* s) { s->mutable_output()->set_echo(true); }},
      {"spec.scheduling.max_queue_wait", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_scheduling()->mutable_max_queue_wait(); }},
      {"spec.scheduling.max_queue_wait", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_scheduling()->mutable_max_queue_wait()->set_seconds(-1); }},
      {"spec.cache.cache_salt", kInvalid, "INVALID_FIELD",
       [](auto* s) { s->mutable_cache()->set_cache_salt(std::string(257, 'x')); }},
  };
  for (const BadCase& c : cases) {
    GenerationSpec spec = Spec();
    c.edit(&spec);
    const absl::Status status = Plan(spec).status();
    EXPECT_EQ(c.code, status.code()) << c.field << ": " << status;
    EXPECT_EQ(c.field, FieldOf(status));
    EXPECT_EQ(c.reason, ReasonOf(status)) << c.field;
  }
}

TEST_F(ServiceRequestTest, LogitBiasReachesTheEngineInOrder) {
  GenerationSpec spec = Spec();
  (*spec.mutable_sampling()->mutable_logit_bias())[5] = -100;
  (*spec.mutable_sampling()->mutable_logit_bias())[3] = 2.5f;
  EXPECT_EQ((std::vector<std::pair<int32_t, float>>{{3, 2.5f}, {5, -100.0f}}),
            Good(spec).spec.sampling.logit_bias);
}

TEST_F(ServiceRequestTest, CacheAndQueueWaitReachTheEngine) {
  GenerationSpec spec = Spec();
  EXPECT_EQ(absl::InfiniteDuration(), Good(spec).spec.max_queue_wait);
  EXPECT_FALSE(Good(spec).spec.bypass_prefix_cache);
  spec.mutable_cache()->set_cache_salt("mine");
  spec.mutable_cache()->set_bypass_prefix_cache(true);
  spec.mutable_cache()->set_prompt_cache_key("a hint");
  spec.mutable_scheduling()->mutable_max_queue_wait()->set_seconds(2);
  spec.mutable_scheduling()->mutable_max_queue_wait()->set_nanos(500000000);
  const GenerateSpec planned = Good(spec).spec;
  EXPECT_EQ("mine", planned.cache_salt);
  EXPECT_TRUE(planned.bypass_prefix_cache);
  EXPECT_EQ(absl::Milliseconds(2500), planned.max_queue_wait);
}

TEST_F(ServiceRequestTest, PromptOverTheContextIsRefusedWithBothNumbers) {
  GenerationSpec spec;
  for (int i = 0; i < 15; ++i) {
    spec.mutable_token_ids()->add_ids(1);
  }
  EXPECT_EQ(1u, Good(spec).spec.stopping.max_tokens);
  spec.mutable_token_ids()->add_ids(1);
  const absl::Status status = Plan(spec).status();
  EXPECT_EQ(absl::StatusCode::kInvalidArgument, status.code());
  EXPECT_EQ("CONTEXT_TOO_LONG", ReasonOf(status));
  EXPECT_EQ("spec.token_ids: the 16 tokens leave no room in the context of 16 tokens",
            std::string(status.message()));
}

TEST_F(ServiceRequestTest, TextPromptNeedsATokenizer) {
  GenerationSpec spec;
  spec.set_text("hello");
  const absl::Status status = Plan(spec).status();
  EXPECT_EQ(absl::StatusCode::kFailedPrecondition, status.code());
  EXPECT_EQ("NO_TOKENIZER", ReasonOf(status));
}

TEST_F(ServiceRequestTest, ModelIsNamedByIdOrNameOrNotAtAll) {
  EXPECT_TRUE(CheckModel(context_, "").ok());
  EXPECT_TRUE(CheckModel(context_, "abc").ok());
  EXPECT_TRUE(CheckModel(context_, "tiny").ok());
  const absl::Status status = CheckModel(context_, "other");
  EXPECT_EQ(absl::StatusCode::kNotFound, status.code());
  EXPECT_EQ("UNKNOWN_MODEL", ReasonOf(status));
}

TEST_F(ServiceRequestTest, RequestIdIsTheFieldsThenTheMetadatasThenAUuid) {
  call_.request_id = "from-metadata";
  GenerationSpec spec = Spec();
  EXPECT_EQ("from-metadata", Good(spec).spec.request_id);
  spec.set_request_id("own");
  EXPECT_EQ("own", Good(spec).spec.request_id);
  call_.request_id.clear();
  spec.clear_request_id();
  const std::string first = Good(spec).spec.request_id;
  EXPECT_EQ(36u, first.size());
  EXPECT_EQ('4', first[14]);
  EXPECT_NE(first, Good(spec).spec.request_id);
}

TEST_F(ServiceRequestTest, UnlimitedCallGetsTheServersLimit) {
  context_.limits.max_request_time = absl::Hours(1);
  const absl::Time before = SteadyNow();
  const absl::Time deadline = Good(Spec()).spec.deadline;
  EXPECT_GE(deadline, before + absl::Hours(1));
  EXPECT_LE(deadline, SteadyNow() + absl::Hours(1));
}

TEST_F(ServiceRequestTest, UnknownFieldIsRefusedAtAnyDepth) {
  GenerationSpec spec = Spec();
  EXPECT_TRUE(CheckNoUnknownFields(spec).ok());
  spec.mutable_sampling()->GetReflection()->MutableUnknownFields(spec.mutable_sampling())->AddVarint(777, 1);
  inference::v1::GenerateRequest request;
  *request.mutable_spec() = spec;
  const absl::Status status = CheckNoUnknownFields(request);
  EXPECT_EQ(absl::StatusCode::kInvalidArgument, status.code());
  EXPECT_EQ("UNKNOWN_FIELD", ReasonOf(status));
  EXPECT_EQ("SamplingParams has a field of number 777, which this build does not know",
            std::string(status.message()));
}

TEST_F(ServiceRequestTest, ScoreAcceptsAFullContext) {
  ScoreRequest request;
  for (int i = 0; i < 16; ++i) {
    request.add_token_ids(5);
    request.add_targets(6);
  }
  request.set_want_logits(true);
  const auto spec = PlanScore(context_, call_, request);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(16u, spec->input.size());
  EXPECT_EQ(16u, spec->targets.size());
  EXPECT_TRUE(spec->want_logits);

  ScoreRequest uneven = request;
  uneven.add_token_ids(5);
  EXPECT_EQ("CONTEXT_TOO_LONG", ReasonOf(PlanScore(context_, call_, uneven).status()));
  uneven.mutable_token_ids()->Truncate(15);
  EXPECT_EQ("targets", FieldOf(PlanScore(context_, call_, uneven).status()));
  uneven.clear_targets();
  EXPECT_TRUE(PlanScore(context_, call_, uneven).ok());
  uneven.clear_token_ids();
  EXPECT_EQ("token_ids", FieldOf(PlanScore(context_, call_, uneven).status()));
  request.set_targets(3, 100);
  EXPECT_EQ("targets", FieldOf(PlanScore(context_, call_, request).status()));
}

TEST_F(ServiceRequestTest, StatedDraftsAreChecked) {
  GenerationSpec spec = Spec();
  EXPECT_FALSE(Good(spec).spec.stated_drafts.has_value());
  inference::v1::StatedDrafts* stated = spec.mutable_stated_drafts();
  EXPECT_TRUE(absl::IsInvalidArgument(Plan(spec).status())) << "without an answer";
  stated->add_token_ids(99);
  stated->set_acceptance(0.75);
  stated->set_drafts(3);
  stated->set_seed(7);
  const GenerationPlan plan = Good(spec);
  ASSERT_TRUE(plan.spec.stated_drafts.has_value());
  EXPECT_EQ(plan.spec.stated_drafts->answer, std::vector<int32_t>{99});
  EXPECT_EQ(plan.spec.stated_drafts->acceptance, 0.75);
  EXPECT_EQ(plan.spec.stated_drafts->drafts, 3u);
  EXPECT_EQ(plan.spec.stated_drafts->seed, 7u);
  const auto expect_refused = [&](auto change) {
    GenerationSpec wrong = spec;
    change(wrong.mutable_stated_drafts());
    EXPECT_TRUE(absl::IsInvalidArgument(Plan(wrong).status())) << Plan(wrong).status();
  };
  expect_refused([](auto* s) { s->add_token_ids(100); });
  expect_refused([](auto* s) { s->set_acceptance(std::numeric_limits<double>::quiet_NaN()); });
  expect_refused([](auto* s) { s->set_acceptance(1.5); });
  expect_refused([](auto* s) { s->set_drafts(0); });
  expect_refused([](auto* s) { s->set_drafts(9); });
}

}  // namespace
}  // namespace sluice::inferd
