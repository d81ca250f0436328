// Recipes: the choices of each name, word and file, the errors, and packs that hold these choices.
#include "pack/writer/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "common/profile/profile.h"
#include "pack/row_layout.h"
#include "pack/writer/pack_inspect.h"
#include "pack/writer/pack_writer.h"
#include "tests/support/folder_bytes.h"
#include "tests/support/pack_values.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

Recipe MustRecipe(const RecipeOptions& words) {
  auto recipe = RecipeFromOptions(words);
  EXPECT_TRUE(recipe.ok()) << recipe.status();
  return recipe.ok() ? *recipe : Recipe();
}
Recipe Named(const std::string& name) { return MustRecipe({.recipe = name}); }

std::string MessageOf(const RecipeOptions& words) {
  return std::string(RecipeFromOptions(words).status().message());
}
std::string TomlError(const std::string& text) {
  const auto recipe = ParseRecipeToml(text, "r.toml");
  EXPECT_EQ(recipe.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(recipe.status().message());
}

// `layers` layers of `experts` experts.
ModelConfig SomeModel(uint32_t layers, uint32_t experts, uint32_t hidden = 256) {
  ModelConfig config;
  config.hidden = hidden;
  config.layers.resize(layers);
  for (LayerConfig& layer : config.layers) layer.moe.experts = experts;
  return config;
}

std::string Described(const ExpertFormat& format) {
  return absl::StrCat(ExpertLayoutName(format.layout), " ", DescribeEncoding(format.parts[0]), ", ",
                      DescribeEncoding(format.parts[1]), ", ", DescribeEncoding(format.parts[2]));
}

// The one format of every expert.
std::string OnlyFormat(const Recipe& recipe) {
  const auto formats = ResolveFormats(recipe, SomeModel(2, 4), {});
  EXPECT_TRUE(formats.ok()) << formats.status();
  if (!formats.ok()) return "";
  EXPECT_EQ(formats->formats.size(), 1u);
  return Described(formats->formats[0]);
}

TEST(Recipe, NamesChooseTheFormatsOfTheirPapers) {
  EXPECT_EQ(OnlyFormat(Named("bf16")), "up|gate|down bf16, bf16, bf16");
  EXPECT_EQ(OnlyFormat(Named("q8")), "up|gate|down q8 g64, q8 g64, q8 g64");
  EXPECT_EQ(OnlyFormat(Named("floe")), "up|gate+down q2 g64, f16, f16");
  EXPECT_EQ(OnlyFormat(MustRecipe({.bits = "q4", .recipe = "floe"})), "up|gate+down q2 g64, q4 g64, q4 g64");
  EXPECT_EQ(OnlyFormat(Named("resident-q2")), "up|gate|down q2 g64, q2 g64, q2 g64");
  EXPECT_EQ(OnlyFormat(Named("q4+2")), "up|gate|down q2 g16, q2 g16, q2 g16");
  EXPECT_EQ(OnlyFormat(Named("q4-all")), "up|gate|down q4 g64, q4 g64, q4 g64");
}

TEST(Recipe, DenseMatricesKeepAtLeastEightBits) {
  EXPECT_EQ(Named("bf16").Dense().encoding, Encoding::kBf16);
  EXPECT_EQ(Named("f16").Dense().encoding, Encoding::kF16);
  for (const char* name : {"q8", "q4", "q3", "q2", "corm"}) {
    EXPECT_EQ(Named(name).Dense().encoding, Encoding::kQ8) << name;
  }
  EXPECT_EQ(Named("floe").Dense().encoding, Encoding::kBf16);
  EXPECT_THAT(MessageOf({.bits = "source", .recipe = "floe"}), HasSubstr("unknown bits \"source\""));
  EXPECT_EQ(MustRecipe({.bits = "q4", .recipe = "floe"}).Dense().encoding, Encoding::kQ8);
  EXPECT_EQ(Named("q4+2").Dense().encoding, Encoding::kQ4);
  EXPECT_EQ(Named("q4-all").Dense().encoding, Encoding::kQ4);
  EXPECT_EQ(MustRecipe({.bits = "q4", .dense_bits = "bf16"}).Dense().encoding, Encoding::kBf16);
}

TEST(Recipe, GroupMetaBitsAndLayoutOverrideTheRecipesOwn) {
  const Recipe recipe = MustRecipe({.recipe = "floe", .group = 32, .meta_bits = 8, .layout = "gate|up+down"});
  EXPECT_EQ(OnlyFormat(recipe), "gate|up+down q2 g32 s8, f16, f16");
  EXPECT_EQ(DescriptorOf({Encoding::kQ4, 16, 8}, 2048).super_group, 128);
  EXPECT_EQ(DescriptorOf({Encoding::kQ4, 16, 8}, 14336).super_group, 256);
  EXPECT_EQ(DescriptorOf({Encoding::kQ4, 64, 8}, 5).super_group, 1);
}

TEST(Recipe, CormKeepsTheMostUsedExpertsAtFourBits) {
  const std::vector<std::vector<uint64_t>> usage = {{5, 9, 1, 7}, {3, 3, 3, 4}};
  const auto formats = ResolveFormats(Named("corm"), SomeModel(2, 4), usage);
  ASSERT_TRUE(formats.ok()) << formats.status();
  ASSERT_EQ(formats->formats.size(), 2u);
  EXPECT_EQ(Described(formats->formats[0]), "gate|up+down q2 g16, q2 g16, q2 g16");
  EXPECT_EQ(Described(formats->formats[1]), "gate|up+down q4 g64, q4 g64, q4 g64");
  EXPECT_EQ(formats->of_expert, (std::vector<std::vector<uint32_t>>{{0, 1, 0, 1}, {1, 0, 0, 1}}));
  const auto quarter =
      ResolveFormats(MustRecipe({.recipe = "corm", .hot_share = 0.25}), SomeModel(2, 4), usage);
  EXPECT_EQ(quarter->of_expert, (std::vector<std::vector<uint32_t>>{{0, 1, 0, 0}, {0, 0, 0, 1}}));
  const auto none = ResolveFormats(MustRecipe({.recipe = "corm", .hot_share = 0}), SomeModel(2, 4), usage);
  EXPECT_EQ(none->formats.size(), 1u);
}

TEST(Recipe, UsageIsNeededByCormOnlyAndItsShapeIsChecked) {
  EXPECT_FALSE(Named("floe").NeedsUsage());
  const auto missing = ResolveFormats(Named("corm"), SomeModel(2, 4), {});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("sluice calibrate"));
  const auto layers = ResolveFormats(Named("corm"), SomeModel(2, 4), {{1, 2, 3, 4}});
  EXPECT_THAT(std::string(layers.status().message()), HasSubstr("1 layers, the model has 2"));
  const auto experts = ResolveFormats(Named("corm"), SomeModel(1, 4), {{1, 2, 3}});
  EXPECT_THAT(std::string(experts.status().message()), HasSubstr("3 experts in layer 0, the model has 4"));
}

constexpr char kExampleToml[] = R"(
name = "mine"
layout = "gate | up+down"
bits = "q2"
group = 16
dense = "q8"
gate = { bits = "q4", group = 64, meta_bits = 8 }

[[rule]]            # the first layer stays fine
layers = [0, 0]
bits = "q8"

[[rule]]            # so do the hottest quarter's down rows
usage = [0.0, 0.25]
down = { bits = "q4", group = 32 }
layout = "up|gate+down"
)";

TEST(Recipe, FilesNameBitsAndLayoutByPartLayerAndUsage) {
  const auto recipe = ParseRecipeToml(kExampleToml, "r.toml");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  const auto formats = ResolveFormats(*recipe, SomeModel(2, 4), {{1, 2, 3, 4}, {4, 3, 2, 1}});
  ASSERT_TRUE(formats.ok()) << formats.status();
  const auto at = [&](uint32_t layer, uint32_t expert) {
    return Described(formats->formats[formats->of_expert[layer][expert]]);
  };
  EXPECT_EQ(at(0, 0), "gate|up+down q8 g64, q8 g64, q8 g64");
  EXPECT_EQ(at(0, 3), "up|gate+down q8 g64, q8 g64, q4 g32");
  EXPECT_EQ(at(1, 3), "gate|up+down q2 g16, q4 g64 s4, q2 g16");
  EXPECT_EQ(at(1, 0), "up|gate+down q2 g16, q4 g64 s4, q4 g32");
  EXPECT_EQ(RecipeText(*recipe),
            "recipe=mine up=q2:16 gate=q4:64:8 down=q2:16 rule[layers=0-0 up=q8:64 gate=q8:64 down=q8:64] "
            "rule[usage=0-0.25 layout=up|gate+down down=q4:32] dense=q8:16 layout=gate|up+down");
}

TEST(Recipe, FilesWithMistakesAreRefusedByKeyOrLine) {
  EXPECT_THAT(TomlError("bits = \"q4\"\nlayot = 1\n"), HasSubstr("layot"));
  EXPECT_THAT(TomlError("bits = q4\n"), HasSubstr("r.toml:1"));
  EXPECT_THAT(TomlError("up = \"q4\"\n"), HasSubstr("gate is missing"));
  EXPECT_THAT(TomlError("bits = \"q5\"\n"), HasSubstr("r.toml: bits is wrong: unknown encoding \"q5\""));
  EXPECT_THAT(TomlError("bits = \"q4\"\nup = \"q5\"\n"), HasSubstr("r.toml: up is wrong: unknown"));
  EXPECT_THAT(TomlError("bits = \"q4\"\n[[rule]]\nlayout = \"up\"\n"),
              HasSubstr("r.toml: rule 1: layout is wrong: unknown"));
  EXPECT_THAT(TomlError("bits = \"q4\"\n[[rule]]\nlayers = [0, 1]\n"),
              HasSubstr("rule 1: has neither bits nor a layout"));
  EXPECT_THAT(TomlError("bits = \"q4\"\ngroup = 24\n"), HasSubstr("group is 24"));
  EXPECT_THAT(TomlError("bits = \"q4\"\ngroup = 256\n"), HasSubstr("group is 256"));
  EXPECT_THAT(TomlError("bits = \"q4\"\nmeta_bits = 4\n"), HasSubstr("meta bits are 4"));
  EXPECT_THAT(TomlError("bits = \"q4\"\n[[rule]]\nusage = [0.5, 0.2]\n"), HasSubstr("0.5 to 0.2"));
  EXPECT_THAT(TomlError("bits = \"q4\"\n[[rule]]\nusage = [0, 2]\n"), HasSubstr("0 to 2"));
  EXPECT_THAT(TomlError("bits = \"q4\"\n[[rule]]\nlayers = [3]\n"), HasSubstr("layers"));
  EXPECT_THAT(TomlError("bits = \"q4\"\n[[rule]]\nlayers = [0.5, 1]\nbits = \"q2\"\n"), HasSubstr("whole"));
  EXPECT_THAT(TomlError("bits = \"q4\"\n[[rule]]\nup = { group = 16 }\n"), HasSubstr("bits"));
  EXPECT_THAT(TomlError("name = \"two words\"\nbits = \"q4\"\n"), HasSubstr("name"));
  EXPECT_THAT(TomlError("bits = 4\n"), HasSubstr("bits"));
}

TEST(Recipe, ARuleForLayersThatTheModelHasNotIsRefused) {
  const auto recipe = ParseRecipeToml("bits = \"q4\"\n[[rule]]\nlayers = [2, 9]\nbits = \"q8\"\n", "r.toml");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  ModelConfig config;
  config.hidden = 64;
  config.layers.resize(3);
  EXPECT_TRUE(ResolveFormats(*recipe, config, {}).ok());
  config.layers.resize(2);
  const auto refused = ResolveFormats(*recipe, config, {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("begins at layer 2, the model has 2 layers"));
}

TEST(Recipe, WordsWithMistakesAreRefusedByName) {
  EXPECT_THAT(MessageOf({.bits = "q5"}), HasSubstr("q5"));
  EXPECT_THAT(MessageOf({.recipe = "flow"}), HasSubstr("floe, corm"));
  EXPECT_THAT(MessageOf({.recipe = "absent.toml"}), HasSubstr("absent.toml"));
  EXPECT_THAT(MessageOf({.bits = "q4", .recipe = "corm"}), HasSubstr("only floe"));
  EXPECT_THAT(MessageOf({.bits = "q4", .group = 20}), HasSubstr("group is 20"));
  EXPECT_THAT(MessageOf({.bits = "q4", .meta_bits = 12}), HasSubstr("meta bits are 12"));
  EXPECT_THAT(MessageOf({.bits = "q4", .dense_bits = "mxfp4"}), HasSubstr("mxfp4"));
  EXPECT_THAT(MessageOf({.bits = "q4", .layout = "up"}), HasSubstr("layout"));
  EXPECT_THAT(MessageOf({.bits = "q4", .hot_share = 0.5}), HasSubstr("corm"));
  EXPECT_THAT(MessageOf({.recipe = "corm", .hot_share = 1.5}), HasSubstr("1.5"));
}

// A tiny model, and packs of it.
class RecipePack : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(WriteTinyModel({.hidden = 80, .layers = 2, .experts = 4, .width = 24}, Model()).ok());
  }
  std::string Model() const { return dir_.File("model"); }

  absl::StatusOr<PackSummary> TryPack(const PackOptions& options, const std::string& name) {
    return PackModel(Model(), dir_.File(name), options, nullptr, nullptr);
  }
  PackValues MustPack(const PackOptions& options, const std::string& name) {
    const auto summary = TryPack(options, name);
    EXPECT_TRUE(summary.ok()) << summary.status();
    EXPECT_TRUE(VerifyPack(dir_.File(name), nullptr, nullptr).ok());
    return PackValues::Of(dir_.File(name));
  }
  // Writes usage that makes experts 1 and 2 the hottest of layer 0, and 0 and 3 of layer 1.
  std::string WriteUsage(const std::string& source_digest) {
    UsageProfile usage;
    usage.source_digest = source_digest;
    usage.tokens = 10;
    usage.experts = {{2, 8, 7, 3}, {9, 1, 2, 8}};
    std::filesystem::create_directories(dir_.File("profile"));
    WriteAll(dir_.File("profile") + "/" + kUsageName, SerializeUsage(usage));
    return dir_.File("profile");
  }
  std::string SourceDigest() { return MustPack({}, "bf16").pack().manifest().provenance.source_digest; }

  TempDir dir_;
};

TEST_F(RecipePack, CormPackHoldsTheBitsThatUsageChose) {
  PackOptions options;
  options.recipe = Named("corm");
  options.profile = WriteUsage(SourceDigest());
  const PackValues values = MustPack(options, "corm");
  const Pack& pack = values.pack();
  for (const auto& [layer, expert, hot] : {std::tuple{0, 0, false},
                                           {0, 1, true},
                                           {0, 2, true},
                                           {0, 3, false},
                                           {1, 0, true},
                                           {1, 1, false},
                                           {1, 2, false},
                                           {1, 3, true}}) {
    const ExpertFormat& format = pack.expert_format(layer, expert);
    for (const EncodingDescriptor& part : format.parts) {
      EXPECT_EQ(part, hot ? MakeDescriptor(Encoding::kQ4, 64) : MakeDescriptor(Encoding::kQ2, 16));
    }
  }
  EXPECT_EQ(pack.manifest().incompatible_features,
            kFeatureInterleaved | kFeatureMixedFormats | kFeatureLowBits);
  EXPECT_THAT(pack.manifest().provenance.options, HasSubstr("recipe=corm"));
  EXPECT_THAT(pack.manifest().provenance.options, HasSubstr("rule[usage=0-0.5 up=q4:64"));
}

TEST_F(RecipePack, ForeignProfileIsRefusedNamingBothDigests) {
  const std::string own = SourceDigest();
  const std::string other(32, 'b');
  PackOptions options;
  options.recipe = Named("corm");
  options.profile = WriteUsage(other);
  const auto result = TryPack(options, "corm");
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(own));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(other));
  EXPECT_FALSE(std::filesystem::exists(dir_.File("corm")));
}

TEST_F(RecipePack, MissingProfileErrorNamesTheCommand) {
  PackOptions options;
  options.recipe = Named("corm");
  EXPECT_THAT(std::string(TryPack(options, "corm").status().message()), HasSubstr("sluice calibrate"));
  options.profile = dir_.File("nothing");
  const auto result = TryPack(options, "corm");
  EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("sluice calibrate"));
}

// Decoded rows do not depend on their neighbours, their layout or their stream.
TEST_F(RecipePack, EveryEncodingHoldsTheSameRowsInEveryLayout) {
  for (const char* bits : {"q8", "q4", "q3", "q2"}) {
    for (const int meta_bits : {16, 8}) {
      PackOptions options;
      options.threads = 1;
      options.recipe = MustRecipe({.bits = bits, .group = 32, .meta_bits = meta_bits});
      const std::string name = absl::StrCat(bits, "_", meta_bits);
      PackValues separate = MustPack(options, name);
      options.threads = 3;
      MustPack(options, name + "_again");
      EXPECT_TRUE(FolderBytes(dir_.File(name)) == FolderBytes(dir_.File(name + "_again"))) << name;
      options.recipe.layout = ExpertLayout::kGateUpdown;
      PackValues together = MustPack(options, name + "_together");
      for (int p = 0; p < kPartCount; ++p) {
        EXPECT_EQ(separate.Expert(1, 2, static_cast<Part>(p)), together.Expert(1, 2, static_cast<Part>(p)));
      }
      EXPECT_EQ((separate.pack().manifest().incompatible_features & kFeatureSuperGroups) != 0,
                meta_bits == 8);
    }
  }
}

TEST_F(RecipePack, InspectShowsTheBitsOfEachPartAndOfEachLayer) {
  const auto recipe = ParseRecipeToml(
      "bits = \"q4\"\nup = { bits = \"q2\", group = 16 }\n[[rule]]\nlayers = [1, 1]\ndown = \"q8\"\n", "r");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  PackOptions options;
  options.recipe = *recipe;
  MustPack(options, "mixed");
  const auto inspection = InspectPack(dir_.File("mixed"));
  ASSERT_TRUE(inspection.ok()) << inspection.status();
  // Rows of 80 values: q2 one block and 5 groups, q4 two blocks and 2 groups, q8 three blocks and 2 groups.
  const double up = 8 * (32 + 20) / 80.0;
  const double gate = 8 * (64 + 8) / 80.0;
  const double down = 8 * (64 + 8 + 96 + 8) / 160.0;
  EXPECT_DOUBLE_EQ(BitsPerWeight(inspection->parts[0]), up);
  EXPECT_DOUBLE_EQ(BitsPerWeight(inspection->parts[1]), gate);
  EXPECT_DOUBLE_EQ(BitsPerWeight(inspection->parts[2]), down);
  EXPECT_DOUBLE_EQ(inspection->ExpertBitsPerWeight(), (up + gate + down) / 3);
  const uint64_t weights = 3 * inspection->parts[0][0].weights;
  EXPECT_DOUBLE_EQ(inspection->StoredBitsPerWeight(),
                   8.0 * static_cast<double>(std::filesystem::file_size(dir_.File("mixed/experts.bin"))) /
                       static_cast<double>(weights));
  ASSERT_EQ(inspection->layers.size(), 2u);
  EXPECT_EQ(inspection->layers[0].experts, (std::vector<uint32_t>{4, 0}));
  EXPECT_EQ(inspection->layers[1].experts, (std::vector<uint32_t>{0, 4}));
  EXPECT_THAT(inspection->ToText(), HasSubstr("down       q4 g64 (4), q8 g64 (4): 8.800 bits a weight"));
  EXPECT_THAT(inspection->ToText(), HasSubstr("layers 1-1: 4 experts each, up|gate|down: up q2 g16"));
  EXPECT_THAT(inspection->ToJson(), HasSubstr("\"ratio_to_bf16\":0.325"));
}

}  // namespace
}  // namespace sluice
