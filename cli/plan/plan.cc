#include "cli/plan/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/size.h"

namespace sluice::cli {
namespace {

constexpr char kExact[] = "exact";

const PlanRow* FindRow(const std::vector<PlanRow>& rows, const std::string& bits) {
  const auto found = std::find_if(
      rows.begin(), rows.end(), [&](const PlanRow& row) { return row.bits == bits && row.preset == kExact; });
  return found == rows.end() ? nullptr : &*found;
}

std::string WhyStreamed(const PlanRow& row) {
  return absl::StrCat("the narrowest without a loss that shows; ", FormatSize(row.memory.dram_budget),
                      " of its ", FormatSize(row.sizes.weights.all),
                      " are in memory, the rest comes from the disk");
}

}  // namespace

KnownQuality QualityOf(const std::string& bits, const std::string& preset) {
  struct Loss {
    const char* name;
    double rise;
  };
  // docs/guide.md has the same tables.
  static constexpr Loss kBitsLoss[] = {{"bf16", 0},
                                       {"f16", 0},
                                       {"q8", 0.0001},
                                       {"q4", 0.006},
                                       {"mxfp4", 0.006},
                                       {"q3", 0.029},
                                       {"q2", 0.206},
                                       // The largest loss of the file types in lab/docs/measured.md.
                                       {kAsInFile, 0.0006},
                                       {kAsInFileSmaller, 0.006}};
  static constexpr Loss kPresetLoss[] = {{"exact", 0}, {"intra", 0.006}, {"floe", 0.10}};
  KnownQuality quality;
  const auto add = [&quality](const auto& table, const std::string& name) {
    for (const Loss& loss : table) {
      if (name != loss.name) continue;
      quality.perplexity_rise = (1 + quality.perplexity_rise) * (1 + loss.rise) - 1;
      return;
    }
    quality.is_known = false;
  };
  add(kBitsLoss, bits);
  add(kPresetLoss, preset);
  return quality;
}

double ComputedShare(const std::string& preset) {
  // The lead part is read whole, the other two by needed neurons; scattered rows
  // reach about this share of the rate of whole experts (lab/docs/measured.md, "Masked experts").
  constexpr double kMaskedRate = 0.78;
  const auto masked = [](double kept) { return std::min(1.0, (1 + 2 * kept) / 3 / kMaskedRate); };
  if (preset == "intra") return masked(0.5);
  if (preset == "floe") return masked(0.2);
  return 1;
}

const std::vector<std::string>& ChosenBits(bool is_gguf) {
  static const std::vector<std::string> of_folder = {"q8", "q4"};
  static const std::vector<std::string> of_file = {kAsInFile, kAsInFileSmaller};
  return is_gguf ? of_file : of_folder;
}

PlanChoice Choose(const std::vector<PlanRow>& rows) {
  const PlanRow* narrowest = nullptr;
  const PlanRow* wider = nullptr;  // the one before, which did not fit
  for (const std::string& bits : ChosenBits(FindRow(rows, kAsInFile) != nullptr)) {
    const PlanRow* row = FindRow(rows, bits);
    if (row == nullptr) continue;
    if (row->memory.whole && row->memory.refusal.empty()) {
      if (wider == nullptr) return {row->bits, row->preset, "the widest that memory holds whole"};
      return {row->bits, row->preset,
              absl::StrCat("memory holds it whole, ", wider->bits, " would take ",
                           FormatSize(wider->sizes.weights.all), " for weights, and ",
                           FormatSize(wider->memory.dram_budget), " are there for them")};
    }
    wider = narrowest = row;
  }
  if (narrowest == nullptr) narrowest = &rows.front();
  PlanChoice choice{narrowest->bits, narrowest->preset, ""};
  choice.why = !narrowest->memory.refusal.empty() ? absl::StrCat("does not run: ", narrowest->memory.refusal)
               : narrowest->memory.whole          ? "memory holds it whole"
                                                  : WhyStreamed(*narrowest);
  return choice;
}

}  // namespace sluice::cli
