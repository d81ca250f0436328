#include "cli/model_facts.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file_io.h"
#include "common/base/status.h"
#include "common/model/dense_names.h"
#include "common/model/hf_config.h"
#include "common/model/model_source.h"
#include "common/profile/profile.h"
#include "pack/pack.h"
#include "pack/pack_plan.h"
#include "pack/writer/pack_writer.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

// Minimum size for a disk measurement: smaller files may be in the disk's own cache.
constexpr uint64_t kLargeFile = 256ull << 20;

// Adds the bytes of dense tensors that each token reads.
void PutDenseReads(const std::vector<DenseTensor>& tensors, StoredSizes* sizes) {
  const bool tied = std::none_of(tensors.begin(), tensors.end(),
                                 [](const DenseTensor& tensor) { return tensor.name == dense::kHead; });
  for (const DenseTensor& tensor : tensors) {
    if (dense::IsRowTable(tensor.name)) continue;
    const uint64_t bytes = uint64_t{tensor.rows} * tensor.stride;
    if (tied || tensor.name != dense::kEmbed) sizes->dense_read += bytes;
    if (tensor.name == (tied ? dense::kEmbed : dense::kHead)) sizes->head_read = bytes;
  }
}

// Returns the encoding of the largest tensor.
EncodingDescriptor DenseEncoding(const std::vector<DenseTensor>& tensors) {
  const auto bytes = [](const DenseTensor& tensor) {
    return dense::IsRowTable(tensor.name) ? 0 : uint64_t{tensor.rows} * tensor.stride;
  };
  const auto largest = std::max_element(tensors.begin(), tensors.end(),
                                        [&](const auto& a, const auto& b) { return bytes(a) < bytes(b); });
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

// Sums the bytes of experts that a token reads, and finds the most frequent format.
class ExpertSums {
 public:
  explicit ExpertSums(const ModelConfig& config) : config_(config), layer_bytes_(config.layers.size()) {}

  void Add(uint32_t layer, uint64_t bytes, const ExpertFormat& format) {
    layer_bytes_[layer] += bytes;
    largest_ = std::max(largest_, bytes);
    const auto same = [&format](const auto& counted) { return counted.first == format; };
    const auto it = std::find_if(counts_.begin(), counts_.end(), same);
    if (it == counts_.end()) {
      counts_.emplace_back(format, 1);
    } else {
      ++it->second;
    }
  }

  void Put(StoredSizes* sizes) const {
    for (size_t layer = 0; layer < ModelLayers(config_); ++layer) {
      const MoeConfig& moe = config_.layers[layer].moe;
      if (moe.experts > 0) sizes->routed_read += layer_bytes_[layer] / moe.experts * moe.top_k;
    }
    sizes->weights.largest_expert = largest_;
    const auto most = std::max_element(counts_.begin(), counts_.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != counts_.end()) sizes->expert_format = most->first;
  }

 private:
  const ModelConfig& config_;
  std::vector<uint64_t> layer_bytes_;
  uint64_t largest_ = 0;
  std::vector<std::pair<ExpertFormat, uint64_t>> counts_;
};

void PutDense(const std::vector<DenseTensor>& tensors, uint64_t bytes, StoredSizes* sizes) {
  sizes->weights.dense = bytes;
  PutDenseReads(tensors, sizes);
  sizes->dense_encoding = DenseEncoding(tensors);
}

absl::StatusOr<ModelFacts> FactsOfPack(const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(path));
  ModelFacts facts;
  facts.config = pack->config();
  facts.is_pack = true;
  StoredSizes sizes;
  PutDense(pack->manifest().dense_tensors, pack->dense_bytes(), &sizes);
  sizes.weights.all = pack->dense_bytes() + pack->total_expert_bytes() + pack->row_bytes();
  ExpertSums experts(facts.config);
  for (uint32_t layer = 0; layer < facts.config.layers.size(); ++layer) {
    for (uint32_t e = 0; e < pack->expert_count(layer); ++e) {
      experts.Add(layer, pack->expert_bytes(layer, e), pack->expert_format(layer, e));
    }
  }
  experts.Put(&sizes);
  sizes.bits = EncodingName(sizes.expert_format.parts[static_cast<size_t>(Part::kUp)].encoding);
  facts.stored.push_back(std::move(sizes));
  const auto usage = ReadUsage(ProfileFolder(path), facts.config, pack->manifest().provenance.source_digest);
  if (usage.ok()) facts.usage = usage->experts;
  // A model in place may be a folder, of which no one file is all.
  std::error_code error;
  const std::string payload = pack->file_path(PackFile::kExperts);
  const bool is_large = pack->file_bytes(PackFile::kExperts) >= kLargeFile;
  facts.large_file = is_large && std::filesystem::is_regular_file(payload, error) ? payload : "";
  return facts;
}

// Returns the sizes of a GGUF file's rows in their own encodings, from its tensor list.
absl::StatusOr<StoredSizes> SizesOfFile(const std::string& model, const ModelConfig& config,
                                        const std::string& bits) {
  PackOptions options;
  ASSIGN_OR_RETURN(options.recipe, RecipeOfBits(bits));
  ASSIGN_OR_RETURN(const PackEstimate estimate, EstimatePack(model, model + ".pack", options));
  StoredSizes sizes;
  sizes.bits = bits;
  PutDense(estimate.dense_tensors, estimate.dense_bytes, &sizes);
  sizes.weights.all = estimate.payload_bytes;
  ExpertSums experts(config);
  for (const ExpertEstimate& expert : estimate.experts)
    experts.Add(expert.layer, expert.bytes, expert.format);
  experts.Put(&sizes);
  return sizes;
}

}  // namespace

bool IsGgufFile(const std::string& model) {
  std::error_code error;
  return fs::is_regular_file(model, error) && !model.ends_with(".json");
}

bool IsAsInFile(const std::string& bits) { return bits == kAsInFile || bits == kAsInFileSmaller; }

absl::StatusOr<Recipe> RecipeOfBits(const std::string& bits) {
  RecipeOptions words;
  if (bits == kAsInFileSmaller) {
    words.down_bits = "q4";
  } else if (bits != kAsInFile) {
    words.bits = bits;
  }
  return RecipeFromOptions(words);
}

absl::StatusOr<StoredSizes> SizesOf(const ModelConfig& config, const std::string& bits) {
  ASSIGN_OR_RETURN(const Recipe recipe, RecipeOfBits(bits));
  const std::vector<DenseSpec> specs = DenseSpecs(config, IsByOutputs(recipe.layout));
  std::vector<EncodingDescriptor> encodings;
  for (const DenseSpec& spec : specs) {
    encodings.push_back(spec.kind == DenseKind::kVector ? EncodingDescriptor{.encoding = Encoding::kF32}
                        : spec.kind == DenseKind::kRouter || spec.kind == DenseKind::kRows
                            ? EncodingDescriptor{.encoding = Encoding::kBf16}
                            : DescriptorOf(recipe.Dense(), spec.cols));
  }
  const std::vector<DenseTensor> dense = PlaceDense(specs, encodings, PackOptions{}.dense_extent_bytes);
  ASSIGN_OR_RETURN(const ExpertFormats formats, ResolveFormats(recipe, config, {}));
  ExtentPlanner planner;
  RETURN_IF_ERROR(planner.AddDense(specs, dense));
  RETURN_IF_ERROR(planner.AddRows(specs, dense));
  StoredSizes sizes;
  sizes.bits = bits;
  ExpertSums experts(config);
  uint64_t before = 0;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const MoeConfig& moe = config.layers[layer].moe;
    for (uint32_t expert = 0; expert < moe.experts; ++expert) {
      const uint32_t format = formats.of_expert[layer][expert];
      const ExpertPlan plan = PlanExpert(formats.formats[format], moe.expert_width, ExpertHidden(config));
      RETURN_IF_ERROR(planner.AddExpert(layer, expert, format, plan));
      const uint64_t bytes = planner.file_bytes(PackFile::kExperts) - before;
      before += bytes;
      experts.Add(layer, bytes, formats.formats[format]);
    }
  }
  experts.Put(&sizes);
  PutDense(dense, planner.file_bytes(PackFile::kDense), &sizes);
  sizes.weights.all =
      sizes.weights.dense + planner.file_bytes(PackFile::kExperts) + planner.file_bytes(PackFile::kRows);
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
      ASSIGN_OR_RETURN(StoredSizes sizes, IsAsInFile(word) ? SizesOfFile(model.string(), facts.config, word)
                                                           : SizesOf(facts.config, word));
      facts.stored.push_back(std::move(sizes));
    }
    facts.large_file = LargeFile(fs::is_directory(model) ? model.string() : model.parent_path().string());
  }
  const bool plain = model.filename() == "config.json";
  facts.name = (plain ? model.parent_path() : model).filename().string();
  return facts;
}

}  // namespace sluice::cli
