#include "pack/pack_format.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

struct EncodingRow {
  Encoding encoding;
  const char* name;
};
constexpr EncodingRow kEncodings[] = {
    {Encoding::kBf16, "bf16"},  {Encoding::kF16, "f16"},     {Encoding::kF32, "f32"},
    {Encoding::kQ8, "q8"},      {Encoding::kQ4, "q4"},       {Encoding::kQ3, "q3"},
    {Encoding::kQ2, "q2"},      {Encoding::kMxfp4, "mxfp4"}, {blocks::kQ4_0, "q4_0"},
    {blocks::kQ4_1, "q4_1"},    {blocks::kQ5_0, "q5_0"},     {blocks::kQ5_1, "q5_1"},
    {blocks::kQ8_0, "q8_0"},    {blocks::kQ2_K, "q2_k"},     {blocks::kQ3_K, "q3_k"},
    {blocks::kQ4_K, "q4_k"},    {blocks::kQ5_K, "q5_k"},     {blocks::kQ6_K, "q6_k"},
    {blocks::kIq4Nl, "iq4_nl"}, {blocks::kIq4Xs, "iq4_xs"},  {blocks::kIq2Xxs, "iq2_xxs"},
    {blocks::kIq2Xs, "iq2_xs"}, {blocks::kIq2S, "iq2_s"},    {blocks::kIq3Xxs, "iq3_xxs"},
    {blocks::kIq3S, "iq3_s"},   {blocks::kIq1S, "iq1_s"},    {blocks::kIq1M, "iq1_m"},
    {blocks::kTq1_0, "tq1_0"},  {blocks::kTq2_0, "tq2_0"},   {blocks::kNvfp4, "nvfp4"},
    {blocks::kQ1_0, "q1_0"},    {blocks::kQ2_0, "q2_0"},
};

constexpr const char* kLayoutNames[kExpertLayoutCount] = {"up|gate|down", "up|gate+down", "gate|up+down",
                                                          "up|gate|outputs"};
constexpr const char* kPartNames[kPartCount] = {"up", "gate", "down"};

// Parts by stream, in their order within a record. Frozen, as are the layouts' numbers.
constexpr int kNoPart = -1;
constexpr int kLayoutParts[kExpertLayoutCount][kPartCount][2] = {
    {{0, kNoPart}, {1, kNoPart}, {2, kNoPart}},
    {{0, kNoPart}, {1, 2}, {kNoPart, kNoPart}},
    {{1, kNoPart}, {0, 2}, {kNoPart, kNoPart}},
    {{0, kNoPart}, {1, kNoPart}, {2, kNoPart}},
};
constexpr int kGatelessParts[kPartCount][2] = {{0, kNoPart}, {2, kNoPart}, {kNoPart, kNoPart}};

void AddFeatures(const EncodingDescriptor& descriptor, uint64_t* features) {
  switch (descriptor.encoding) {
    case Encoding::kQ4:
    case Encoding::kQ3:
    case Encoding::kQ2:
      *features |= kFeatureLowBits;
      break;
    case Encoding::kMxfp4:
      *features |= kFeatureMxfp4;
      break;
    default:
      break;
  }
  if (IsFileBlock(descriptor.encoding)) {
    *features |= kFeatureFileBlocks;
  } else if (IsBlockEncoding(descriptor.encoding)) {
    *features |= kFeatureBlocks;
  } else if (descriptor.super_group != 0) {
    *features |= kFeatureSuperGroups;
  }
}

}  // namespace

const char* EncodingName(Encoding encoding) {
  for (const EncodingRow& row : kEncodings) {
    if (row.encoding == encoding) return row.name;
  }
  return "invalid";
}

absl::StatusOr<Encoding> EncodingFromName(const std::string& name) {
  std::string known;
  for (const EncodingRow& row : kEncodings) {
    if (name == row.name) return row.encoding;
    absl::StrAppend(&known, known.empty() ? "" : ", ", row.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown encoding \"", name.substr(0, 40), "\" (known: ", known, ")"));
}

const char* ExpertLayoutName(ExpertLayout layout) { return kLayoutNames[static_cast<size_t>(layout)]; }

absl::StatusOr<ExpertLayout> ExpertLayoutFromName(const std::string& name) {
  // Accepts "up | gate+down" with spaces, as people write it.
  const std::string word = absl::StrReplaceAll(name, {{" ", ""}});
  for (int i = 0; i < kExpertLayoutCount; ++i) {
    if (word == kLayoutNames[i]) return static_cast<ExpertLayout>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown layout \"", name.substr(0, 40),
                                                 "\" (known: ", absl::StrJoin(kLayoutNames, ", "), ")"));
}

const char* PartName(Part part) { return kPartNames[static_cast<size_t>(part)]; }

std::string DescribeEncoding(const EncodingDescriptor& descriptor) {
  std::string text = EncodingName(descriptor.encoding);
  if (IsBlockEncoding(descriptor.encoding)) return text;
  if (descriptor.group != 0) absl::StrAppend(&text, " g", descriptor.group);
  if (descriptor.super_group != 0) absl::StrAppend(&text, " s", descriptor.super_group);
  return text;
}

// A stream holds one record for each neuron (of down by outputs for each output), with the rows of its parts
// one after the other. Each row begins at a rounded offset; behind the last one the record is rounded up to
// the stride.
ExpertPlan PlanExpert(const ExpertFormat& format, uint32_t neurons, uint32_t hidden) {
  ExpertPlan plan;
  const auto by_outputs = [&format](int part) {
    return IsByOutputs(format.layout) && part == static_cast<int>(Part::kDown);
  };
  const auto& layout = format.gates ? kLayoutParts[static_cast<size_t>(format.layout)] : kGatelessParts;
  for (const auto& stream_parts : layout) {
    if (stream_parts[0] == kNoPart) break;
    uint64_t end = 0;
    uint64_t next = 0;
    for (const int part : stream_parts) {
      if (part == kNoPart) continue;
      const uint32_t rows = by_outputs(part) ? hidden : neurons;
      const uint32_t cols = by_outputs(part) ? neurons : hidden;
      const uint64_t bytes = RowBytes(format.parts[part], cols);
      plan.parts[part] = {plan.streams, static_cast<uint32_t>(next), 0, rows, cols};
      plan.stream_rows[plan.streams] = rows;
      end = next + bytes;
      next += RoundStride(bytes);
    }
    plan.stream_stride[plan.streams++] = static_cast<uint32_t>(RoundStride(end));
  }
  constexpr size_t kUp = static_cast<size_t>(Part::kUp);
  if (!format.gates) plan.parts[static_cast<size_t>(Part::kGate)] = plan.parts[kUp];
  for (PartLocation& location : plan.parts) location.stride = plan.stream_stride[location.stream];
  return plan;
}

ExpertPlans::ExpertPlans(const ModelConfig& config, const std::vector<ExpertFormat>& formats) {
  std::map<uint32_t, size_t> known;  // by width
  for (const LayerConfig& layer : config.layers) {
    const auto [it, is_new] = known.emplace(layer.moe.expert_width, plans_.size());
    first_.push_back(it->second);
    for (size_t f = 0; is_new && f < formats.size(); ++f) {
      plans_.push_back(PlanExpert(formats[f], layer.moe.expert_width, ExpertHidden(config)));
    }
  }
}

PartSet StoredParts(const ExpertFormat& format) {
  return format.gates ? kAllParts : PartSet{static_cast<PartSet>(PartBit(Part::kUp) | PartBit(Part::kDown))};
}

bool HasFile(const Manifest& manifest, PackFile file) {
  return file != PackFile::kRows || std::any_of(manifest.config.layers.begin(), manifest.config.layers.end(),
                                                [](const LayerConfig& layer) { return HasNgrams(layer); });
}

uint64_t FeaturesOf(const Manifest& manifest) {
  uint64_t features = 0;
  if (manifest.expert_formats.size() > 1) features |= kFeatureMixedFormats;
  for (const ExpertFormat& format : manifest.expert_formats) {
    if (!format.gates) features |= kFeatureGateless;
    if (IsByOutputs(format.layout)) {
      features |= kFeatureOutputs;
    } else if (format.layout != ExpertLayout::kUpGateDown) {
      features |= kFeatureInterleaved;
    }
    for (const EncodingDescriptor& part : format.parts) AddFeatures(part, &features);
  }
  for (const DenseTensor& tensor : manifest.dense_tensors) AddFeatures(tensor.encoding, &features);
  if (HasFile(manifest, PackFile::kRows)) features |= kFeatureRows;
  if (manifest.in_place.has_value()) features |= kFeatureInPlace;
  return features;
}

bool IsByOutputs(const std::vector<ExpertFormat>& formats) {
  return !formats.empty() && IsByOutputs(formats.front().layout);
}

}  // namespace sluice
