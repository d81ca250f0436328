#include "inferd/api/request_checks.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "gtest/gtest.h"

namespace sluice::inferd {
namespace {

const FieldNames kNames = {"", "sampling.", "stopping.", "output.", "cache."};
constexpr RequestLimits kLimits = {.vocab = 64, .context = 32, .has_text = true};

GenerateSpec Good() {
  GenerateSpec spec;
  spec.request_id = "a";
  spec.prompt = {1, 2, 3};
  spec.stopping.max_tokens = 4;
  return spec;
}

absl::Status Check(const GenerateSpec& spec, const RequestLimits& limits = kLimits) {
  const absl::Status fields = CheckFields(spec, limits, kNames);
  return fields.ok() ? CheckLengths(spec, limits, kNames, "prompt") : fields;
}

// The line of a document that begins with `start`; empty if there is none.
std::string LineOf(const std::string& path, const std::string& start) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, start)) {
      return line;
    }
  }
  return "";
}

// The row of a message's field in the gRPC reference.
std::string GrpcRowOf(const std::string& name) {
  std::ifstream file("docs/reference/grpc.md");
  const std::string field = absl::StrCat(" | `", name, "` | ");
  bool inference = false;  // the messages of generation.proto, before those of other files
  for (std::string line; std::getline(file, line);) {
    inference = absl::StartsWith(line, "## ") ? absl::StrContains(line, "generation.proto") : inference;
    if (inference && absl::StrContains(line, field)) {
      return line;
    }
  }
  return "";
}

TEST(RequestChecksTest, OutsideOfABoundNamesFieldAndNumbers) {
  struct Row {
    std::string field;
    std::function<void(GenerateSpec*)> spoil;
  };
  const std::vector<Row> rows = {
      {"prompt", [](GenerateSpec* s) { s->prompt.clear(); }},
      {"prompt", [](GenerateSpec* s) { s->prompt[1] = 64; }},
      {"prompt", [](GenerateSpec* s) { s->prompt[2] = -1; }},
      {"prompt", [](GenerateSpec* s) { s->prompt.assign(32, 1); }},
      {"stopping.max_tokens", [](GenerateSpec* s) { s->stopping.max_tokens = 0; }},
      {"stopping.max_tokens", [](GenerateSpec* s) { s->stopping.max_tokens = 30; }},
      {"stopping.max_tokens", [](GenerateSpec* s) { s->stopping.max_tokens = 0xffffffffu; }},
      {"stopping.min_tokens", [](GenerateSpec* s) { s->stopping.min_tokens = 5; }},
      {"stopping.stop", [](GenerateSpec* s) { s->stopping.stop = {""}; }},
      {"stopping.stop", [](GenerateSpec* s) { s->stopping.stop = {std::string(1025, 'x')}; }},
      {"stopping.stop", [](GenerateSpec* s) { s->stopping.stop.assign(17, "x"); }},
      {"stopping.stop_token_ids", [](GenerateSpec* s) { s->stopping.stop_token_ids = {99}; }},
      {"stopping.stop_token_ids", [](GenerateSpec* s) { s->stopping.stop_token_ids.assign(65, 1); }},
      {"sampling.temperature", [](GenerateSpec* s) { s->sampling.temperature = -1; }},
      {"sampling.temperature", [](GenerateSpec* s) { s->sampling.temperature = 2.1f; }},
      {"sampling.temperature", [](GenerateSpec* s) { s->sampling.temperature = NAN; }},
      {"sampling.temperature", [](GenerateSpec* s) { s->sampling.temperature = INFINITY; }},
      {"sampling.top_p", [](GenerateSpec* s) { s->sampling.top_p = 0; }},
      {"sampling.top_p", [](GenerateSpec* s) { s->sampling.top_p = 1.1f; }},
      {"sampling.min_p", [](GenerateSpec* s) { s->sampling.min_p = 1; }},
      {"sampling.repetition_penalty", [](GenerateSpec* s) { s->sampling.repetition_penalty = 0; }},
      {"sampling.frequency_penalty", [](GenerateSpec* s) { s->sampling.frequency_penalty = NAN; }},
      {"sampling.presence_penalty", [](GenerateSpec* s) { s->sampling.presence_penalty = INFINITY; }},
      {"sampling.logit_bias",
       [](GenerateSpec* s) {
         s->sampling.logit_bias = {{64, 0.0f}};
       }},
      {"sampling.logit_bias",
       [](GenerateSpec* s) {
         s->sampling.logit_bias = {{1, -101.0f}};
       }},
      {"sampling.logit_bias",
       [](GenerateSpec* s) {
         s->sampling.logit_bias.assign(1025, {1, 0.0f});
       }},
      {"output.logprobs", [](GenerateSpec* s) { s->logprobs = 21; }},
      {"cache.cache_salt", [](GenerateSpec* s) { s->cache_salt = std::string(257, 's'); }},
  };
  ASSERT_TRUE(Check(Good()).ok());
  for (const Row& row : rows) {
    GenerateSpec spec = Good();
    row.spoil(&spec);
    const absl::Status status = Check(spec);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << row.field << ": " << status;
    EXPECT_EQ(row.field, FieldOf(status)) << status;
  }
  EXPECT_EQ("t: is 2.5, must be 0 to 2", CheckBound(Field::kTemperature, 2.5, "t").message());
}

TEST(RequestChecksTest, TooLongForTheContextHasItsReason) {
  GenerateSpec spec = Good();
  spec.stopping.max_tokens = 30;
  EXPECT_EQ("CONTEXT_TOO_LONG", ReasonOf(Check(spec)));
  EXPECT_TRUE(absl::StrContains(Check(spec).message(), "32")) << Check(spec);
  spec.stopping.max_tokens = 29;
  EXPECT_TRUE(Check(spec).ok()) << Check(spec);
  spec.prompt.assign(32, 1);
  EXPECT_EQ("CONTEXT_TOO_LONG", ReasonOf(Check(spec)));
}

TEST(RequestChecksTest, ConstraintsDecideWhereAnswersEnd) {
  GenerateSpec spec = Good();
  spec.constraint.emplace();
  EXPECT_TRUE(Check(spec).ok()) << Check(spec);
  spec.stopping.min_tokens = 2;
  EXPECT_EQ("stopping.min_tokens", FieldOf(Check(spec)));
  spec.stopping.min_tokens = 0;
  spec.stopping.ignore_eos = true;
  EXPECT_EQ("stopping.ignore_eos", FieldOf(Check(spec)));
}

TEST(RequestChecksTest, StopStringsNeedATokenizer) {
  GenerateSpec spec = Good();
  spec.stopping.stop = {"x"};
  EXPECT_TRUE(Check(spec).ok()) << Check(spec);
  EXPECT_EQ("stopping.stop", FieldOf(Check(spec, {.vocab = 64, .context = 32, .has_text = false})));
}

TEST(RequestChecksTest, EndsOfBoundsAreInsideUnlessExcluded) {
  for (const FieldBound& bound : FieldBounds()) {
    EXPECT_EQ(!bound.excludes_least, CheckBound(bound.field, bound.least, "f").ok()) << bound.name;
    EXPECT_EQ(!bound.excludes_most, CheckBound(bound.field, bound.most, "f").ok()) << bound.name;
    EXPECT_FALSE(CheckBound(bound.field, bound.least - 1, "f").ok()) << bound.name;
    EXPECT_FALSE(CheckBound(bound.field, bound.most + 1000, "f").ok()) << bound.name;
    EXPECT_FALSE(CheckBound(bound.field, NAN, "f").ok()) << bound.name;
  }
}

// HTTP alone has a timeout in the request, and more than one choice.
TEST(RequestChecksTest, GrpcReferenceHasTheBounds) {
  for (const FieldBound& bound : FieldBounds()) {
    if (bound.field != Field::kTimeout && bound.field != Field::kChoices) {
      EXPECT_TRUE(absl::StrContains(GrpcRowOf(bound.name), RangeOf(bound)))
          << bound.name << " " << RangeOf(bound) << ": " << GrpcRowOf(bound.name);
    }
  }
}

// HTTP names a request by a header.
TEST(RequestChecksTest, HttpReferenceHasTheBounds) {
  for (const FieldBound& bound : FieldBounds()) {
    const std::string start =
        bound.field == Field::kRequestId ? "| `x-request-id` | " : absl::StrCat("| `", bound.name, "` | ");
    const std::string line = LineOf("docs/reference/http.md", start);
    EXPECT_TRUE(absl::StrContains(line, RangeOf(bound)))
        << bound.name << " " << RangeOf(bound) << ": " << line;
  }
}

}  // namespace
}  // namespace sluice::inferd
