#include "pack/in_place/in_place_index.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/file_io.h"
#include "common/base/status.h"
#include "pack/in_place/file_rows.h"
#include "pack/pack_tables.h"
#include "pack/writer/matrix_reader.h"
#include "pack/writer/recipe.h"

namespace sluice {
namespace {

// Changes when an index that was made before would mean other bytes.
constexpr char kGenerator[] = "sluice in place 1";

// An index' parts, as they are written and compared.
struct Index {
  PackJob job;
  std::string table;
  std::string manifest;
};

absl::Status CheckExperts(const PackJob& job) {
  for (const ExpertUnit& unit : job.expert_units) {
    const ExpertFormat& format = job.manifest.expert_formats[unit.format];
    const ExpertSource& source = job.experts[unit.layer][unit.expert];
    const SourceMatrix* const matrices[kPartCount] = {&source.up, &source.gate, &source.down};
    for (int p = 0; p < kPartCount; ++p) {
      const SourceMatrix& matrix = *matrices[p];
      if (matrix.tensor == nullptr) continue;  // no gates
      if (FindFileRows(*job.checkpoint, matrix, format.parts[p]).has_value()) continue;
      return absl::UnimplementedError(
          absl::StrCat(job.checkpoint->PathOf(*matrix.tensor), ": ", PartName(static_cast<Part>(p)),
                       " of expert ", unit.expert, " of layer ", unit.layer, " (", SourceTypeName(matrix),
                       ") is not stored in rows of ", DescribeEncoding(format.parts[p]),
                       ", one after the other; it can be served from a pack (sluice pack)"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PackJob> PlanModel(const std::string& model) {
  PackOptions options;
  std::error_code error;
  const bool folder = std::filesystem::is_directory(model, error);
  ASSIGN_OR_RETURN(options.recipe, RecipeFromOptions({.bits = folder ? "source" : ""}));
  options.recipe.layout = ExpertLayout::kUpGateOutputs;
  options.recipe.keep_f32 = true;
  options.mtp_layers = false;  // halves of a projection's rows are not stored one after the other
  ASSIGN_OR_RETURN(PackJob job, PreparePack(model, options));
  RETURN_IF_ERROR(CheckExperts(job));
  return job;
}

absl::StatusOr<Index> MakeIndex(const std::string& model) {
  Index index;
  ASSIGN_OR_RETURN(index.job, PlanModel(model));
  PackJob& job = index.job;
  Manifest& manifest = job.manifest;
  manifest.in_place = InPlaceSource{model, job.checkpoint->fingerprint()};
  manifest.provenance.generator = kGenerator;
  manifest.provenance.source_digest = job.fingerprint.ToHex();
  index.table = SerializeExtentTable({job.extents, std::vector<uint64_t>(job.checksum_count, 0)});
  manifest.extent_table = {index.table.size(), DigestOf(index.table)};
  for (int f = 0; f < kPackFileCount; ++f) manifest.payload[f].bytes = job.payload_bytes[f];
  for (const auto& [name, content] : job.tokenizer_files) {
    manifest.tokenizer_files[name] = {content.size(), DigestOf(content)};
  }
  index.manifest = SerializeManifest(&manifest);
  return index;
}

}  // namespace

absl::Status WriteInPlaceIndex(const std::string& model, const std::string& dir) {
  std::error_code error;
  const std::string path = std::filesystem::canonical(model, error).string();
  if (error) return ErrnoToStatus(error.value(), model);
  ASSIGN_OR_RETURN(const Index index, MakeIndex(path));
  const std::string tokenizer = absl::StrCat(dir, "/", kTokenizerFolder);
  std::filesystem::create_directories(tokenizer, error);
  if (error) return ErrnoToStatus(error.value(), absl::StrCat("cannot make the folder ", tokenizer));
  for (const auto& [name, content] : index.job.tokenizer_files) {
    RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(tokenizer, "/", name), content));
  }
  RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(dir, "/", kExtentTableName), index.table));
  // A folder with a manifest is a pack, so the manifest comes last and at once.
  const std::string manifest = absl::StrCat(dir, "/", kManifestName);
  RETURN_IF_ERROR(WriteFileDurably(manifest + ".new", index.manifest));
  std::filesystem::rename(manifest + ".new", manifest, error);
  if (error) return ErrnoToStatus(error.value(), absl::StrCat("cannot rename ", manifest, ".new"));
  return SyncFolder(dir);
}

absl::StatusOr<PackJob> PlanInPlace(const Pack& index) {
  if (!index.in_place()) {
    return absl::InvalidArgumentError(absl::StrCat("pack ", index.dir(), " is not in place"));
  }
  const std::string& model = index.manifest().in_place->model;
  absl::StatusOr<Index> now = MakeIndex(model);
  if (!now.ok()) return Annotate(now.status(), absl::StrCat("the model of ", index.dir()));
  if (now->job.manifest.model_id != index.model_id()) {
    return absl::FailedPreconditionError(absl::StrCat(model, " has changed since its index ", index.dir(),
                                                      " was made; `sluice packs remove` ends the index"));
  }
  return std::move(now->job);
}

}  // namespace sluice
