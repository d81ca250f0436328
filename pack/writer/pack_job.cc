#include "pack/writer/pack_job.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "common/model/dense_names.h"
#include "common/model/model_config_json.h"
#include "common/model/model_source.h"
#include "common/profile/profile.h"
#include "pack/pack_plan.h"
#include "pack/row_layout.h"
#include "pack/writer/matrix_reader.h"

namespace sluice {
namespace {

// Changes when the writer makes other bytes from the same input.
constexpr char kGenerator[] = "sluice pack 2";

// Returns the smallest unquantized encoding that holds every value of `matrix`.
Encoding EncodingOfValues(const SourceMatrix& matrix) {
  if (matrix.scale != 1 || matrix.add != 0) return Encoding::kF32;  // the values are products and sums
  const Encoding encoding = matrix.tensor->type == ElementType::kBf16  ? Encoding::kBf16
                            : matrix.tensor->type == ElementType::kF16 ? Encoding::kF16
                                                                       : Encoding::kF32;
  const bool alike =
      std::all_of(matrix.more_rows.begin(), matrix.more_rows.end(),
                  [encoding](const SourceMatrix& next) { return EncodingOfValues(next) == encoding; });
  return alike ? encoding : Encoding::kF32;
}

bool IsKeptMxfp4(const SourceMatrix& matrix) {
  return matrix.tensor->mxfp4 && !matrix.transposed &&
         std::all_of(matrix.more_rows.begin(), matrix.more_rows.end(), IsKeptMxfp4);
}

// Storage format of a GGUF file's rows that should stay unchanged (recipe.recoded if they cannot); none for
// other sources and for unquantized rows except F16 and, with keep_f32, F32.
std::optional<EncodingDescriptor> KeptRows(const SourceMatrix& matrix, const Recipe& recipe) {
  const CheckpointTensor& tensor = *matrix.tensor;
  if (tensor.blocks == Encoding::kInvalid) {
    const Encoding values = EncodingOfValues(matrix);
    const bool is_kept = tensor.decoded && ((tensor.format == "F16" && values == Encoding::kF16) ||
                                            (recipe.keep_f32 && values == Encoding::kF32));
    return is_kept ? std::optional(MakeDescriptor(values)) : std::nullopt;
  }
  if (IsKeptMxfp4(matrix)) return MakeDescriptor(Encoding::kMxfp4);
  const Encoding blocks = BlocksOf(matrix);
  return blocks == Encoding::kInvalid ? DescriptorOf(recipe.recoded, matrix.cols()) : MakeDescriptor(blocks);
}

// Vectors and routers are small and errors in them reach every token, so recipes do not apply to them.
EncodingDescriptor DenseDescriptor(const DenseSpec& spec, const SourceMatrix& source, const Recipe& recipe) {
  switch (spec.kind) {
    case DenseKind::kVector:
      return MakeDescriptor(Encoding::kF32);
    case DenseKind::kRouter:
      return MakeDescriptor(source.tensor->type == ElementType::kBf16 ? Encoding::kBf16 : Encoding::kF32);
    case DenseKind::kRows:
      return MakeDescriptor(EncodingOfValues(source));
    case DenseKind::kMatrix:
    case DenseKind::kSummed:
      break;
  }
  if (recipe.keep_values && !recipe.dense.has_value()) {
    return MakeDescriptor(EncodingOfValues(source));
  }
  if (recipe.keep_blocks && !recipe.dense.has_value()) {
    if (const std::optional<EncodingDescriptor> kept = KeptRows(source, recipe)) return *kept;
  }
  return DescriptorOf(recipe.Dense(), spec.cols);
}

// Puts the mapped dense tensors into storage order, gives them encodings and places.
absl::Status PlanDense(const std::vector<DenseSpec>& specs, const SourceMap& sources, PackJob* job) {
  absl::flat_hash_map<std::string, const DenseSource*> by_name;
  for (const DenseSource& source : sources.dense) by_name[source.name] = &source;
  std::vector<EncodingDescriptor> encodings;
  for (const DenseSpec& spec : specs) {
    const auto it = by_name.find(spec.name);
    if (it == by_name.end() || it->second->matrix.rows() != spec.rows ||
        it->second->matrix.cols() != spec.cols) {
      return absl::InternalError(
          absl::StrCat("the family's tensor map has no ", spec.name, " [", spec.rows, ", ", spec.cols, "]"));
    }
    job->dense.push_back(it->second->matrix);
    encodings.push_back(DenseDescriptor(spec, it->second->matrix, job->options.recipe));
  }
  job->manifest.dense_tensors = PlaceDense(specs, encodings, job->options.dense_extent_bytes);
  return absl::OkStatus();
}

// True if there is a `part` and `holds` is true for that part of every expert.
template <typename Predicate>
bool AllExperts(const SourceMap& sources, Part part, const Predicate& holds) {
  bool any = false;
  for (const std::vector<ExpertSource>& layer : sources.experts) {
    for (const ExpertSource& expert : layer) {
      const SourceMatrix& matrix = part == Part::kUp     ? expert.up
                                   : part == Part::kGate ? expert.gate
                                                         : expert.down;
      if (matrix.tensor == nullptr) continue;  // no gates
      if (!holds(matrix)) return false;
      any = true;
    }
  }
  return any;
}

// True if every expert's `part` is stored in MXFP4 along the pack's rows. Blocks of down matrices that are
// stored transposed run across neurons.
bool StoredInMxfp4(const SourceMap& sources, Part part) { return AllExperts(sources, part, IsKeptMxfp4); }

// A source in MXFP4 is stored unchanged: any other encoding would be larger or lose precision. The dense
// tensors keep the encoding of the recipe, which would else follow the experts'.
void KeepMxfp4(const SourceMap& sources, Recipe* recipe) {
  if (!recipe->keep_mxfp4) return;
  const RowFormat dense = recipe->Dense();
  for (int p = 0; p < kPartCount; ++p) {
    if (!StoredInMxfp4(sources, static_cast<Part>(p))) continue;
    recipe->parts[p].encoding = Encoding::kMxfp4;
    recipe->dense = dense;
  }
}

// The rows of each part in their source encoding, or in float32 if the experts differ.
void KeepValues(const SourceMap& sources, Recipe* recipe) {
  if (!recipe->keep_values) return;
  for (int p = 0; p < kPartCount; ++p) {
    for (const Encoding encoding : {Encoding::kBf16, Encoding::kF16}) {
      if (AllExperts(sources, static_cast<Part>(p),
                     [encoding](const SourceMatrix& m) { return EncodingOfValues(m) == encoding; })) {
        recipe->parts[p] = {encoding};
      }
    }
  }
}

// Gives the experts of a GGUF file the formats that keep their rows unchanged, by layer and expert as in the
// file.
void KeepBlocks(const SourceMap& sources, const Recipe& recipe, ExpertFormats* formats) {
  std::vector<ExpertFormat> kept_formats;
  for (size_t layer = 0; layer < sources.experts.size(); ++layer) {
    for (size_t e = 0; e < sources.experts[layer].size(); ++e) {
      const ExpertSource& expert = sources.experts[layer][e];
      ExpertFormat format = formats->formats[formats->of_expert[layer][e]];
      const SourceMatrix* const matrices[kPartCount] = {&expert.up, &expert.gate, &expert.down};
      for (int p = 0; p < kPartCount; ++p) {
        if (matrices[p]->tensor == nullptr) continue;
        format.parts[p] = KeptRows(*matrices[p], recipe).value_or(format.parts[p]);
      }
      if (!format.gates) {
        format.parts[static_cast<size_t>(Part::kGate)] = format.parts[static_cast<size_t>(Part::kUp)];
      }
      const auto it = std::find(kept_formats.begin(), kept_formats.end(), format);
      formats->of_expert[layer][e] = static_cast<uint32_t>(it - kept_formats.begin());
      if (it == kept_formats.end()) kept_formats.push_back(format);
    }
  }
  if (!kept_formats.empty()) formats->formats = std::move(kept_formats);
}

// True if any of the model's matrices has its rows in a GGUF file's blocks.
bool HasBlocks(const Checkpoint& checkpoint) {
  return std::any_of(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                     [](const CheckpointTensor& tensor) { return tensor.blocks != Encoding::kInvalid; });
}

// Gives down matrices rows by outputs.
void TurnDowns(SourceMap* sources) {
  const auto is_down = [](const std::string& name) {
    return name.ends_with(dense::kDenseDown) || name.ends_with(dense::kSharedDown) ||
           name.ends_with(dense::kParallelDown);
  };
  for (DenseSource& source : sources->dense) {
    if (is_down(source.name)) source.matrix = Transposed(source.matrix);
  }
  for (std::vector<ExpertSource>& layer : sources->experts) {
    for (ExpertSource& expert : layer) expert.down = Transposed(expert.down);
  }
}

// "up q4_k, gate q4_k, down q8 g64" of each format.
std::string DescribeFormats(absl::Span<const ExpertFormat> formats) {
  std::string text;
  for (const ExpertFormat& format : formats) {
    absl::StrAppend(&text, text.empty() ? "" : "; ");
    for (int p = 0; p < kPartCount; ++p) {
      if ((StoredParts(format) & PartBit(static_cast<Part>(p))) == 0) continue;
      absl::StrAppend(&text, p == 0 ? "" : ", ", PartName(static_cast<Part>(p)), " ",
                      DescribeEncoding(format.parts[p]));
    }
  }
  return text;
}

// Chooses every expert's format; with a profile also its origin and its result.
absl::StatusOr<ExpertFormats> ChooseFormats(const SourceMap& sources, PackJob* job) {
  const Recipe& recipe = job->options.recipe;
  const ModelConfig& config = job->manifest.config;
  UsageProfile usage;
  if (recipe.NeedsUsage() && !job->options.profile.empty()) {
    ASSIGN_OR_RETURN(usage, ReadUsage(ProfileFolder(job->options.profile), config, ""));
    job->profile_source = usage.source_digest;
  }
  ASSIGN_OR_RETURN(ExpertFormats formats, ResolveFormats(recipe, config, usage.experts));
  std::string& text = job->manifest.provenance.options;
  text = absl::StrCat(RecipeText(recipe), " dense_extent_bytes=", job->options.dense_extent_bytes);
  if (recipe.keep_blocks) {
    KeepBlocks(sources, recipe, &formats);
    if (HasBlocks(*job->checkpoint)) {
      const std::string chosen = DescribeFormats(formats.formats);
      absl::StrAppend(&text,
                      " blocks=kept recoded=", DescribeEncoding(MakeDescriptor(recipe.recoded.encoding)), ":",
                      recipe.recoded.group, ":", recipe.recoded.meta_bits);
      job->rows_note = absl::StrCat("rows as the file has them",
                                    IsByOutputs(recipe.layout) ? ": " : ", but down anew: ", chosen);
    }
  }
  if (recipe.NeedsUsage()) {
    Hasher128 hasher;
    for (const std::vector<uint32_t>& layer : formats.of_expert) {
      // The usage decided these choices, and the recorded options do not contain it.
      for (const uint32_t format : layer) hasher.UpdateU64(format);
    }
    absl::StrAppend(&text, " chosen=", hasher.Finish().ToHex());
  }
  return formats;
}

// Extents of a unit of rows: enough to make a journal's record small beside them.
constexpr uint32_t kRowUnitExtents = 256;

void AddRowUnits(const std::vector<DenseSpec>& specs, PackJob* job) {
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].kind != DenseKind::kRows) continue;
    const DenseTensor& tensor = job->manifest.dense_tensors[i];
    const uint32_t each = RowsPerExtent(tensor.stride);
    const uint32_t extents = (tensor.rows - 1) / each + 1;
    for (uint32_t first = 0; first < extents; first += kRowUnitExtents) {
      job->row_units.push_back(
          {i, tensor.extent + first, std::min(kRowUnitExtents, extents - first), first * each});
    }
  }
}

absl::Status PlanExtents(const std::vector<DenseSpec>& specs, const ExpertFormats& formats, PackJob* job) {
  const ModelConfig& config = job->manifest.config;
  ExtentPlanner planner;
  RETURN_IF_ERROR(planner.AddDense(specs, job->manifest.dense_tensors));
  job->dense_extents = static_cast<uint32_t>(planner.extents().size());
  RETURN_IF_ERROR(planner.AddRows(specs, job->manifest.dense_tensors));
  AddRowUnits(specs, job);
  job->plans = ExpertPlans(config, job->manifest.expert_formats);
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const MoeConfig& moe = config.layers[layer].moe;
    for (uint32_t expert = 0; expert < moe.experts; ++expert) {
      const uint32_t format = formats.of_expert[layer][expert];
      const uint32_t first_extent = static_cast<uint32_t>(planner.extents().size());
      job->expert_units.push_back({layer, expert, first_extent, format});
      RETURN_IF_ERROR(planner.AddExpert(layer, expert, format, job->plans.Of(layer, format)));
    }
  }
  job->checksum_count = planner.checksum_count();
  for (int f = 0; f < kPackFileCount; ++f)
    job->payload_bytes[f] = planner.file_bytes(static_cast<PackFile>(f));
  job->extents = planner.TakeExtents();
  return absl::OkStatus();
}

// Inputs that decide the bytes of the payload. A journal with another fingerprint belongs to another
// conversion.
Digest128 FingerprintOf(const PackJob& job) {
  Hasher128 hasher;
  hasher.UpdateSized(kGenerator);
  hasher.UpdateSized(job.manifest.provenance.options);
  hasher.UpdateSized(ModelConfigToJson(job.manifest.config).dump());
  hasher.UpdateSized(job.checkpoint->fingerprint());
  return hasher.Finish();
}

}  // namespace

absl::Span<const ExtentEntry> PackJob::unit_extents(uint32_t unit) const {
  const absl::Span<const ExtentEntry> all = absl::MakeConstSpan(extents);
  if (unit < dense_extents) return all.subspan(unit, 1);
  if (unit < first_expert_unit()) {
    const RowUnit& rows = row_units[unit - dense_extents];
    return all.subspan(rows.first_extent, rows.extents);
  }
  const ExpertUnit& expert = expert_units[unit - first_expert_unit()];
  return all.subspan(expert.first_extent, plans.Of(expert.layer, expert.format).streams);
}

std::pair<size_t, size_t> PackJob::dense_range(uint32_t unit) const {
  const std::vector<DenseTensor>& tensors = manifest.dense_tensors;
  const auto by_extent = [](const DenseTensor& tensor, uint32_t extent) { return tensor.extent < extent; };
  const auto first = std::lower_bound(tensors.begin(), tensors.end(), unit, by_extent);
  const auto last = std::lower_bound(first, tensors.end(), unit + 1, by_extent);
  return {first - tensors.begin(), last - tensors.begin()};
}

uint64_t PackJob::total_bytes() const {
  return std::accumulate(payload_bytes.begin(), payload_bytes.end(), uint64_t{0});
}

uint64_t PackJob::unit_bytes(uint32_t unit) const {
  uint64_t bytes = 0;
  for (const ExtentEntry& entry : unit_extents(unit)) bytes += entry.length;
  return bytes;
}

uint64_t PackJob::worker_bytes() const {
  constexpr uint64_t kRowBuffers = 16ull << 20;  // row blocks as source, float32 and encoded, write buffer
  uint64_t largest = 0;
  for (const SourceMatrix& matrix : dense) largest = std::max(largest, MatrixMemory(matrix));
  for (const std::vector<ExpertSource>& layer : experts) {
    for (const ExpertSource& expert : layer) {
      // Parts of one stream are read together; up and gate never share one.
      largest = std::max(
          largest, std::max(MatrixMemory(expert.up), MatrixMemory(expert.gate)) + MatrixMemory(expert.down));
    }
  }
  return largest + kRowBuffers;
}

absl::StatusOr<PackJob> PreparePack(const std::string& model_dir, const PackOptions& options) {
  PackJob job;
  job.options = options;
  RETURN_IF_ERROR(CheckRecipe(options.recipe));
  ASSIGN_OR_RETURN(ModelSource source, OpenModelSource(model_dir));
  HfConfig& hf = source.hf;
  job.checkpoint = std::move(source.checkpoint);
  job.tokenizer_files = std::move(source.tokenizer_files);
  if (!options.mtp_layers) hf.config = WithoutMtpLayers(std::move(hf.config));
  absl::StatusOr<SourceMap> sources = MapTensors(hf.config, *job.checkpoint);
  if (!sources.ok()) return Annotate(sources.status(), model_dir);
  job.manifest.config = std::move(hf.config);
  job.manifest.generation = hf.generation;
  job.manifest.chat_template = options.chat_template.value_or(std::move(hf.chat_template));
  Recipe& recipe = job.options.recipe;
  if (recipe.down_as_file && HasBlocks(*job.checkpoint)) recipe.layout = ExpertLayout::kUpGateOutputs;
  if (IsByOutputs(recipe.layout)) TurnDowns(&*sources);
  KeepValues(*sources, &recipe);
  // In a GGUF file every matrix is checked by itself (KeepBlocks).
  if (!HasBlocks(*job.checkpoint)) KeepMxfp4(*sources, &recipe);
  ASSIGN_OR_RETURN(const ExpertFormats formats, ChooseFormats(*sources, &job));
  job.manifest.expert_formats = formats.formats;
  job.manifest.provenance.generator = kGenerator;
  const std::vector<DenseSpec> specs =
      DenseSpecs(job.manifest.config, IsByOutputs(job.manifest.expert_formats));
  RETURN_IF_ERROR(PlanDense(specs, *sources, &job));
  RETURN_IF_ERROR(PlanExtents(specs, formats, &job));
  job.experts = std::move(sources->experts);
  if (options.mtp_layers && !source.no_mtp.empty()) {
    absl::StrAppend(&job.rows_note, job.rows_note.empty() ? "" : "; ", source.no_mtp);
  }
  job.fingerprint = FingerprintOf(job);
  return job;
}

// Digest over the values of every tensor under its canonical name and in the pack's order: the same model has
// the same digest for any arrangement of its files, and for any recipe. Profiles are found by it.
std::string SourceDigest(const PackJob& job, absl::Span<const Digest128> digests) {
  Hasher128 hasher;
  hasher.UpdateSized(ModelConfigToJson(job.manifest.config).dump());
  size_t next = 0;
  const auto add = [&](const std::string& name, const SourceMatrix& matrix, size_t count = 1) {
    hasher.UpdateSized(name);
    hasher.UpdateSized(SourceTypeName(matrix));
    hasher.UpdateU64(matrix.more_rows.empty() ? uint64_t{matrix.blocks} * matrix.lines : matrix.rows());
    hasher.UpdateU64(matrix.length);
    for (const size_t end = next + count; next < end; ++next) {
      hasher.UpdateU64(digests[next].high);
      hasher.UpdateU64(digests[next].low);
    }
  };
  for (size_t i = 0; i < job.dense.size(); ++i) {
    // A table of rows has a digest for each of its units.
    const auto units = std::count_if(job.row_units.begin(), job.row_units.end(),
                                     [i](const RowUnit& unit) { return unit.tensor == i; });
    add(job.manifest.dense_tensors[i].name, job.dense[i], std::max<size_t>(1, units));
  }
  for (const ExpertUnit& unit : job.expert_units) {
    const ExpertSource& source = job.experts[unit.layer][unit.expert];
    const std::string base = dense::LayerName(unit.layer, absl::StrCat("experts.", unit.expert, "."));
    add(base + "up", source.up);
    if (source.gate.tensor != nullptr) {
      add(base + "gate", source.gate);
    } else {
      ++next;  // the empty digest of an absent part
    }
    add(base + "down", source.down);
  }
  return hasher.Finish().ToHex();
}

}  // namespace sluice
