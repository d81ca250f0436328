// Quantization error on real matrices, through the whole path: source, encoder, files, checksums, decoder.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <vector>

#include "common/base/json_reader.h"
#include "pack/writer/pack_writer.h"
#include "tests/support/folder_bytes.h"
#include "tests/support/pack_values.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

constexpr char kSampleModel[] = "deploy/sample";
// Errors of the reference package on matrices of the sample model.
constexpr char kReferenceErrors[] = "tests/pack/data/hqq_errors.json";
constexpr double kAllowedRatio = 1.02;

std::string BitsWord(int bits) { return absl::StrCat("q", bits); }

// A pack of the sample model with `bits` (a word) in groups of `group`.
PackValues SamplePack(const TempDir& dir, const std::string& bits, int group) {
  const std::string out = dir.File(absl::StrCat(bits, "_", group));
  const auto options = PackOptionsFromText(bits, "", group, "bf16", "");
  EXPECT_TRUE(options.ok()) << options.status();
  const auto summary = PackModel(kSampleModel, out, *options, nullptr, nullptr);
  EXPECT_TRUE(summary.ok()) << summary.status();
  return PackValues::Of(out);
}

double RelativeError(const std::vector<float>& actual, const std::vector<float>& exact) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(static_cast<double>(actual[i]) - exact[i], 2);
    norm += std::pow(static_cast<double>(exact[i]), 2);
  }
  return std::sqrt(error / norm);
}

Part PartOf(const std::string& name) {
  return name == "up" ? Part::kUp : name == "gate" ? Part::kGate : Part::kDown;
}

TEST(PackQuality, MatricesAreAsCloseAsTheReferencePackages) {
  TempDir dir;
  PackValues exact = SamplePack(dir, "bf16", 64);
  std::map<std::pair<int, int>, PackValues> packs;
  const auto json = ParseJson(ReadAll(kReferenceErrors), kReferenceErrors);
  ASSERT_TRUE(json.ok()) << json.status();
  std::map<std::pair<int, int>, double> worst;
  for (const auto& row : (*json)["rows"]) {
    const std::pair<int, int> key = {row["bits"], row["group"]};
    auto it = packs.find(key);
    if (it == packs.end()) it = packs.emplace(key, SamplePack(dir, BitsWord(key.first), key.second)).first;
    const Part part = PartOf(row["part"]);
    const double error = RelativeError(it->second.Expert(row["layer"], row["expert"], part),
                                       exact.Expert(row["layer"], row["expert"], part));
    const double ratio = error / row["relative_frobenius_error"].get<double>();
    EXPECT_LE(ratio, kAllowedRatio) << row.dump();
    worst[key] = std::max(worst[key], ratio);
  }
  EXPECT_EQ(worst.size(), 7u);
  for (const auto& [key, ratio] : worst) {
    std::printf("bits %d group %d: worst error %.4f x the reference\n", key.first, key.second, ratio);
  }
}

}  // namespace
}  // namespace sluice
