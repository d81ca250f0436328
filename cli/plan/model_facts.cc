#include "cli/plan/model_facts.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file_io.h"
#include "common/model/dense_names.h"
#include "common/model/families/hf_config.h"
#include "common/model/source/model_source.h"
#include "common/profile/profile.h"
#include "common/status.h"
#include "pack/pack.h"
#include "pack/pack_plan.h"
#include "pack/writer/pack_writer.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

// Smaller files are read from caches of the disk itself.
constexpr uint64_t kLargeFile = 256ull << 20;

// What a token reads of the dense tensors.
uint64_t DenseRead(const std::vector<DenseTensor>& tensors) {
  const auto named = [](std::string_view name) {
    return [name](const DenseTensor& tensor) { return tensor.name == name; };
  };
  const bool tied = std::none_of(tensors.begin(), tensors.end(), named(dense::kHead));
  uint64_t bytes = 0;
  for (const DenseTensor& tensor : tensors) {
    if (tied || tensor.name != dense::kEmbed) bytes += uint64_t{tensor.rows} * tensor.stride;
  }
  return bytes;
}

// Of the largest of them.
EncodingDescriptor DenseEncoding(const std::vector<DenseTensor>& tensors) {
  const auto largest = std::max_element(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return uint64_t{a.rows} * a.stride < uint64_t{b.rows} * b.stride;
  });
  return largest == tensors.end() ? EncodingDescriptor{} : largest->encoding;
}

std::string LargeFile(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored) && it->file_size(ignored) >= kLargeFile && !ignored)
      return it->path().string();
  }
  return "";
}

absl::StatusOr<ModelFacts> FactsOfPack(const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(path));
  ModelFacts facts;
  facts.config = pack->config();
  facts.is_pack = true;
  StoredSizes sizes;
  sizes.weights = {.all = pack->dense_bytes() + pack->total_expert_bytes(),
                   .dense = pack->dense_bytes(),
                   .largest_expert = pack->largest_expert_bytes()};
  sizes.dense_read = DenseRead(pack->manifest().dense_tensors);
  sizes.dense_encoding = DenseEncoding(pack->manifest().dense_tensors);
  for (uint32_t layer = 0; layer < facts.config.layers.size(); ++layer) {
    const uint32_t experts = pack->expert_count(layer);
    uint64_t bytes = 0;
    for (uint32_t e = 0; e < experts; ++e) bytes += pack->expert_bytes(layer, e);
    if (experts == 0) continue;
    sizes.routed_read += bytes / experts * facts.config.layers[layer].moe.top_k;
    if (sizes.expert_encoding.encoding == Encoding::kInvalid) {
      sizes.expert_encoding = pack->expert_format(layer, 0).parts[static_cast<size_t>(Part::kUp)];
    }
  }
  sizes.bits = EncodingName(sizes.expert_encoding.encoding);
  facts.stored.push_back(std::move(sizes));
  const auto usage = ReadUsage(ProfileFolder(path), facts.config, pack->manifest().provenance.source_digest);
  if (usage.ok()) facts.usage = usage->experts;
  facts.large_file =
      pack->file_bytes(PackFile::kExperts) >= kLargeFile ? pack->file_path(PackFile::kExperts) : "";
  return facts;
}

}  // namespace

absl::StatusOr<StoredSizes> SizesOf(const ModelConfig& config, const std::string& bits) {
  RecipeWords words;
  words.bits = bits;
  ASSIGN_OR_RETURN(const Recipe recipe, RecipeFromWords(words));
  const std::vector<DenseSpec> specs = DenseSpecs(config);
  std::vector<EncodingDescriptor> encodings;
  for (const DenseSpec& spec : specs) {
    encodings.push_back(spec.kind == DenseKind::kVector   ? EncodingDescriptor{.encoding = Encoding::kF32}
                        : spec.kind == DenseKind::kRouter ? EncodingDescriptor{.encoding = Encoding::kBf16}
                                                          : DescriptorOf(recipe.Dense(), spec.cols));
  }
  const std::vector<DenseTensor> dense = PlaceDense(specs, encodings, PackOptions{}.dense_extent_bytes);
  ASSIGN_OR_RETURN(const ExpertFormats formats, ResolveFormats(recipe, config, {}));
  ExtentPlanner planner;
  RETURN_IF_ERROR(planner.AddDense(specs, dense));
  StoredSizes sizes;
  sizes.bits = bits;
  uint64_t before = 0;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const MoeConfig& moe = config.layers[layer].moe;
    uint64_t layer_bytes = 0;
    for (uint32_t expert = 0; expert < moe.experts; ++expert) {
      const uint32_t format = formats.of_expert[layer][expert];
      const ExpertPlan plan = PlanExpert(formats.formats[format], config.hidden);
      RETURN_IF_ERROR(planner.AddExpert(layer, expert, format, plan, moe.expert_width));
      const uint64_t bytes = planner.file_bytes(PackFile::kExperts) - before;
      before += bytes;
      layer_bytes += bytes;
      sizes.weights.largest_expert = std::max(sizes.weights.largest_expert, bytes);
    }
    if (moe.experts > 0) sizes.routed_read += layer_bytes / moe.experts * moe.top_k;
  }
  sizes.weights.dense = planner.file_bytes(PackFile::kDense);
  sizes.weights.all = sizes.weights.dense + planner.file_bytes(PackFile::kExperts);
  sizes.dense_read = DenseRead(dense);
  sizes.dense_encoding = DenseEncoding(dense);
  if (!formats.formats.empty()) {
    sizes.expert_encoding = formats.formats[0].parts[static_cast<size_t>(Part::kUp)];
  }
  return sizes;
}

absl::StatusOr<ModelFacts> ReadModelFacts(const std::string& path, const std::vector<std::string>& bits) {
  std::error_code error;
  const fs::path model = fs::canonical(path, error);
  if (error) return ErrnoToStatus(error.value(), absl::StrCat("--model ", path));
  ModelFacts facts;
  if (FileExists((model / kManifestName).string())) {
    ASSIGN_OR_RETURN(facts, FactsOfPack(model.string()));
  } else {
    ASSIGN_OR_RETURN(HfConfig hf, ReadModelConfig(model.string()));
    facts.config = std::move(hf.config);
    for (const std::string& word : bits) {
      ASSIGN_OR_RETURN(StoredSizes sizes, SizesOf(facts.config, word));
      facts.stored.push_back(std::move(sizes));
    }
    facts.large_file = LargeFile(fs::is_directory(model) ? model.string() : model.parent_path().string());
  }
  const bool plain = model.filename() == "config.json";
  facts.name = (plain ? model.parent_path() : model).filename().string();
  return facts;
}

}  // namespace sluice::cli
