// The plan and table of `sluice-lab quality`.
#include <gtest/gtest.h>

#include "lab/quality_rows.h"

namespace sluice::cli {
namespace {

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr char kPlan[] = R"(
[[pack]]
name = "bf16"
args = ["--bits", "bf16"]
calibrate = true
[[row]]
name = "base"
pack = "bf16"
series = "a & b"
[[row]]
name = "up 80 %"
pack = "bf16"
options = ["--sparsity", "up"]
series = "c"
reference = 20
)";

TEST(QualityPlanTest, PacksAndRowsAreRead) {
  const auto plan = ParseQualityPlan(kPlan, "rows.toml");
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->packs.size(), 1u);
  EXPECT_TRUE(plan->packs[0].calibrate);
  EXPECT_EQ(plan->packs[0].args, (std::vector<std::string>{"--bits", "bf16"}));
  ASSERT_EQ(plan->rows.size(), 2u);
  EXPECT_FALSE(plan->rows[0].reference.has_value());
  EXPECT_EQ(plan->rows[1].options, (std::vector<std::string>{"--sparsity", "up"}));
  EXPECT_EQ(plan->rows[1].reference, 20.0);
}

TEST(QualityPlanTest, MistakesAreRefusedWithTheirLine) {
  const struct {
    const char* text;
    const char* expected;
  } cases[] = {
      {"", "there is no [[pack]]"},
      {"[[pack]]\nname = \"p\"", "there is no [[row]]"},
      {"[[pack]]\nargs = []\n[[row]]\nname = \"r\"\npack = \"p\"", "name is missing"},
      {"[[pack]]\nname = \"p\"\n[[row]]\nname = \"r\"\npack = \"q\"", "line 3: there is no pack \"q\""},
      {"[[pack]]\nname = \"p\"\nargs = [1]\n[[row]]\nname = \"r\"\npack = \"p\"", "list of strings"},
      {"[[pack]]\nname = \"p\"\nspeed = 1\n[[row]]\nname = \"r\"\npack = \"p\"",
       "line 3: speed is not known"},
      {"[[pack]]\nname = \"p\"\n[[pack]]\nname = \"p\"\n[[row]]\nname = \"r\"\npack = \"p\"", "twice"},
      {"[[pack]", "line 1"},
  };
  for (const auto& c : cases) {
    const auto plan = ParseQualityPlan(c.text, "rows.toml");
    EXPECT_TRUE(absl::IsInvalidArgument(plan.status())) << c.text;
    EXPECT_TRUE(Contains(std::string(plan.status().message()), c.expected)) << plan.status();
  }
}

TEST(QualityPlanTest, EveryRecipeMeetsEveryPresetOnceBaseFirst) {
  const QualityPlan plan = PlanOf({{"q4"}, {"bf16"}}, {"exact", "corm"});
  ASSERT_EQ(plan.packs.size(), 2u);
  ASSERT_EQ(plan.rows.size(), 4u);
  EXPECT_EQ(plan.rows[0].name, "bf16, exact");
  EXPECT_EQ(plan.rows[1].name, "q4, exact");
  EXPECT_EQ(plan.rows[3].options, (std::vector<std::string>{"--preset", "corm"}));
}

TEST(QualityPlanTest, UsageRecipesNeedABaseProfileAndAFolder) {
  const QualityPlan plan = PlanOf({{"corm", true}, {"my/own.toml"}}, {"exact"});
  ASSERT_EQ(plan.packs.size(), 3u);
  EXPECT_TRUE(plan.packs[0].calibrate);
  EXPECT_EQ(plan.packs[1].profile_of, plan.packs[0].name);
  EXPECT_FALSE(plan.packs[1].calibrate);
  EXPECT_EQ(plan.packs[2].profile_of, "");
  EXPECT_EQ(plan.packs[2].name.find('/'), std::string::npos);
  EXPECT_EQ(plan.packs[2].args, (std::vector<std::string>{"--recipe", "my/own.toml"}));
  EXPECT_EQ(plan.rows[2].name, "my/own.toml, exact");
  EXPECT_EQ(plan.rows[2].pack, plan.packs[2].name);
  EXPECT_FALSE(PlanOf({{"my/own.toml"}}, {"exact"}).packs[0].calibrate);
}

TEST(QualityResultTest, OutputOfPerplexityIsRead) {
  const auto result = ParsePerplexityJson(
      R"({"ppl": 18.5, "tokens": 100, "ppl_stderr": 0.1, "kld_mean": null, "bytes_per_token": 1048576, "sparsity": 0.8})");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->ppl, 18.5);
  EXPECT_EQ(result->tokens, 100u);
  EXPECT_EQ(result->sparsity, 0.8);
  EXPECT_FALSE(result->kld_mean.has_value());
  EXPECT_FALSE(ParsePerplexityJson("{}").ok());
  EXPECT_FALSE(ParsePerplexityJson("not json").ok());
}

TEST(QualityTableTest, TableSetsRunsBesideBaseAndReference) {
  const auto plan = ParseQualityPlan(kPlan, "rows.toml");
  ASSERT_TRUE(plan.ok());
  QualityResult base;
  base.ppl = 10;
  base.bytes_per_token = 2 << 20;
  QualityResult sparse = base;
  sparse.ppl = 21;
  sparse.sparsity = 0.8;
  const std::string table = QualityTable(*plan, {base, sparse});
  EXPECT_TRUE(
      Contains(table, "| c | up 80 % | 0.000 | 2.000 | 80.00 | 21.0000 | +110.00 | 20.0000 | +5.00 |"))
      << table;
}

}  // namespace
}  // namespace sluice::cli
