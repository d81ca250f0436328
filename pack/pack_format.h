// Stored constants of a pack: numbers, limits, and the plain structs that the parsers return. pack/FORMAT.md
// is the specification; it freezes every value here.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/checksum.h"
#include "common/base/encoding.h"
#include "common/model/model_config.h"

namespace sluice {

inline constexpr uint32_t kPackFormatVersion = 1;
inline constexpr uint64_t kExtentAlignment = 4096;  // of an extent's offset and length, as O_DIRECT requires
inline constexpr uint64_t kDenseTensorAlignment = 64;

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kExtentTableName[] = "extents.bin";
inline constexpr char kTokenizerFolder[] = "tokenizer";
inline constexpr char kProfileFolder[] = "profile";  // not part of identity and digests

// Feature bits. A reader refuses a pack with an unknown incompatible bit and ignores unknown compatible bits.
enum IncompatibleFeature : uint64_t {
  kFeatureInterleaved = 1u << 0,   // a stream holds more than one part
  kFeatureMixedFormats = 1u << 1,  // experts differ in encoding or layout
  kFeatureSuperGroups = 1u << 2,   // meta_bits 8
  kFeatureMxfp4 = 1u << 3,
  kFeatureLowBits = 1u << 4,   // q4, q3 or q2 rows
  kFeatureGateless = 1u << 5,  // experts without gates
  kFeatureOutputs = 1u << 7,   // down matrices are stored by outputs (bits 6 and 8: row_layout.h)
  kFeatureInPlace = 1u << 9,   // the payload lies in the model's own file
  kFeatureRows = 1u << 10,     // there are tables whose rows are read one by one
};
inline constexpr uint64_t kKnownIncompatibleFeatures =
    kFeatureInterleaved | kFeatureMixedFormats | kFeatureSuperGroups | kFeatureMxfp4 | kFeatureLowBits |
    kFeatureGateless | kFeatureOutputs | kFeatureInPlace | kFeatureRows;

// Payload files by number.
enum class PackFile : uint8_t { kDense = 0, kExperts = 1, kRows = 2 };
inline constexpr int kPackFileCount = 3;  // packs without tables of rows have no file of them
inline constexpr const char* kPackFileNames[kPackFileCount] = {"dense.bin", "experts.bin", "rows.bin"};

enum class ExtentKind : uint8_t { kDense = 0, kExpert = 1, kRows = 2 };

// Bytes of an extent of rows, if a row is not longer: few, since a reader wants one row, and many enough that
// the extent table stays small beside a table of 10^11 bytes.
inline constexpr uint32_t kRowExtentBytes = 64u << 10;
// Rows of such an extent.
inline constexpr uint32_t RowsPerExtent(uint32_t stride) {
  return stride < kRowExtentBytes ? kRowExtentBytes / stride : 1;
}

// One aligned byte range with its own checksums, as in extents.bin.
struct ExtentEntry {
  static constexpr uint32_t kNone = 0xffffffffu;
  ExtentKind kind = ExtentKind::kDense;
  uint8_t file = 0;         // PackFile
  uint16_t stream = 0;      // of the expert; for dense extents their number within the group
  uint32_t layer = kNone;   // kNone for embeddings (first) and head (last)
  uint32_t expert = kNone;  // kNone for dense extents; of rows: number within the table
  uint32_t format = 0;      // index into Manifest::expert_formats; 0 for dense extents
  uint64_t offset = 0;      // in the file, a multiple of kExtentAlignment
  uint64_t length = 0;      // stored bytes with padding: a multiple of kExtentAlignment
  uint64_t first_checksum = 0;
  bool operator==(const ExtentEntry&) const = default;
};

// Grouping of an expert's parts into streams. Numbers are frozen.
enum class ExpertLayout : uint8_t {
  kUpGateDown = 0,  // "up|gate|down": three streams
  kUpGatedown = 1,  // "up|gate+down": gate and down rows of a neuron are adjacent
  kGateUpdown = 2,  // "gate|up+down"
  // "up|gate|outputs": three streams, the last one of down's rows by output, as checkpoints and GGUF files
  // have them. The neurons of such a pack cannot be taken apart.
  kUpGateOutputs = 3,
};
inline constexpr int kExpertLayoutCount = 4;

// True if down is [hidden, neurons], not transposed. Then every format of the pack has such a layout, and the
// dense down tensors are stored so too.
inline constexpr bool IsByOutputs(ExpertLayout layout) { return layout == ExpertLayout::kUpGateOutputs; }

// Storage format of experts: the encoding of each part, and the grouping of parts into streams. Experts
// without gates have two streams, up and down, in every layout, and their gate part repeats the up part.
struct ExpertFormat {
  ExpertLayout layout = ExpertLayout::kUpGateDown;
  std::array<EncodingDescriptor, kPartCount> parts;  // by Part
  bool gates = true;
  bool operator==(const ExpertFormat&) const = default;
};

// Position of one part in its stream.
struct PartLocation {
  uint32_t stream = 0;
  uint32_t base = 0;    // byte offset of the part's row within a record
  uint32_t stride = 0;  // bytes from one record to the next
  uint32_t rows = 0;
  uint32_t cols = 0;
};

// Positions of the parts of an expert. A record is a neuron's, in a stream of down by outputs an output's.
struct ExpertPlan {
  uint32_t streams = 0;
  std::array<uint32_t, kPartCount> stream_stride = {};  // by stream
  std::array<uint32_t, kPartCount> stream_rows = {};    // by stream: its records
  std::array<PartLocation, kPartCount> parts = {};      // by Part
};
ExpertPlan PlanExpert(const ExpertFormat& format, uint32_t neurons, uint32_t hidden);

// The plans of a model's experts, for each layer and format. Thread safety: immutable.
class ExpertPlans {
 public:
  ExpertPlans() = default;
  ExpertPlans(const ModelConfig& config, const std::vector<ExpertFormat>& formats);
  // REQUIRES: layer < layers, format < formats.
  const ExpertPlan& Of(uint32_t layer, uint32_t format) const { return plans_[first_[layer] + format]; }

 private:
  std::vector<ExpertPlan> plans_;  // by width, then format
  std::vector<size_t> first_;      // by layer
};

// Set of the stored parts.
PartSet StoredParts(const ExpertFormat& format);

// One dense tensor: rows [rows][stride] from `offset` of dense extent `extent`. A table of rows fills the
// extents of rows from `extent` on, RowsPerExtent(stride) in each.
struct DenseTensor {
  std::string name;
  uint32_t rows = 0;
  uint32_t cols = 0;
  EncodingDescriptor encoding;
  uint32_t extent = 0;
  uint64_t offset = 0;  // within the extent, a multiple of kDenseTensorAlignment
  uint32_t stride = 0;  // RoundStride(RowBytes(encoding, cols))
  bool operator==(const DenseTensor&) const = default;
};

struct StoredFile {
  uint64_t bytes = 0;
  Digest128 digest;
  bool operator==(const StoredFile&) const = default;
};

// Origin of the pack; part of its identity.
struct Provenance {
  std::string source_digest;  // 32 hex digits: of the source's tensors, names and config; see FORMAT.md
  std::string options;        // canonical text of the options that shaped the bytes
  std::string generator;      // "sluice pack 2" or "sluice synth 1": changes with the writer's output
  bool operator==(const Provenance&) const = default;
};

// The model whose own file holds the payload, in place of dense.bin and experts.bin: a pack in place
// (pack/in_place). The file's rows become those of the pack when they are read.
struct InPlaceSource {
  std::string model;        // absolute path of the GGUF file, of a split one the first, or of the folder
  std::string fingerprint;  // Checkpoint::fingerprint() when the pack was made
  bool operator==(const InPlaceSource&) const = default;
};

// Names in manifests, flags and messages.
const char* EncodingName(Encoding encoding);
absl::StatusOr<Encoding> EncodingFromName(const std::string& name);  // InvalidArgument naming the known ones
const char* ExpertLayoutName(ExpertLayout layout);                   // "up|gate|down"
absl::StatusOr<ExpertLayout> ExpertLayoutFromName(const std::string& name);
const char* PartName(Part part);
// "q8 g64", "bf16": for people.
std::string DescribeEncoding(const EncodingDescriptor& descriptor);

// manifest.json, parsed and checked in itself. `model_id` is its closing digest.
struct Manifest {
  uint32_t format_version = kPackFormatVersion;
  uint64_t incompatible_features = 0;
  uint64_t compatible_features = 0;
  ModelConfig config;
  GenerationDefaults generation;
  std::string chat_template;                 // empty: none
  std::vector<ExpertFormat> expert_formats;  // at least one if any layer has experts
  std::vector<DenseTensor> dense_tensors;    // in storage order
  StoredFile extent_table;
  std::array<StoredFile, kPackFileCount> payload;
  std::map<std::string, StoredFile> tokenizer_files;  // by base name, in kTokenizerFolder
  Provenance provenance;
  std::optional<InPlaceSource> in_place;  // none: the folder has the payload's files
  std::string model_id;
};

// True if the pack has this payload file: that of rows only where the model has tables of them.
bool HasFile(const Manifest& manifest, PackFile file);

// The incompatible feature bits that `manifest` needs for its formats.
uint64_t FeaturesOf(const Manifest& manifest);

// True if the formats' down is stored by outputs. REQUIRES: formats that agree on it.
bool IsByOutputs(const std::vector<ExpertFormat>& formats);

// extents.bin, parsed and checked in itself (not against a manifest).
struct ExtentTable {
  std::vector<ExtentEntry> entries;
  std::vector<uint64_t> checksums;
};

}  // namespace sluice
