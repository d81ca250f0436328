#include "pack/writer/pack_writer.h"

#include <algorithm>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/file_io.h"
#include "common/base/status.h"
#include "pack/pack.h"
#include "pack/writer/pack_job.h"
#include "pack/writer/parallel_units.h"
#include "pack/writer/staging.h"
#include "pack/writer/unit_encoder.h"

namespace sluice {
namespace {

// Makes a job's units on several threads. One instance per run.
class Conversion {
 public:
  Conversion(const PackJob& job, Staging* staging, ProgressMeter* meter)
      : job_(job), staging_(*staging), meter_(meter), records_(job.units()) {}

  // Checks the units that an earlier run finished, instead of making them again.
  void UseFound(const std::vector<JournalRecord>& found) {
    for (const JournalRecord& record : found) records_[record.unit] = record;
  }

  absl::Status Run(uint32_t workers) {
    std::vector<UnitEncoder> encoders(workers, UnitEncoder(job_, staging_, meter_));
    return RunUnits(workers, job_.units(),
                    [&](uint32_t worker, uint32_t unit) { return Do(unit, &encoders[worker]); });
  }

  // By unit, complete after a Run() that was OK.
  const std::vector<JournalRecord>& records() const { return records_; }
  bool reused_any() const { return reused_any_.load(); }

 private:
  absl::Status Do(uint32_t unit, UnitEncoder* encoder) {
    JournalRecord& record = records_[unit];  // this unit is this thread's alone
    if (!record.checksums.empty()) {
      ASSIGN_OR_RETURN(const bool there, encoder->IsWritten(record));
      if (there) {
        reused_any_.store(true);
        return meter_->Add(job_.unit_bytes(unit), /*found=*/true);
      }
    }
    record = {};
    // A unit enters the journal only after its bytes are written. IsWritten() reads them again to check that
    // they reached the disk.
    RETURN_IF_ERROR(encoder->Encode(unit, &record));
    return staging_.journal().Append(record);
  }

  const PackJob& job_;
  Staging& staging_;
  ProgressMeter* const meter_;
  std::vector<JournalRecord> records_;  // an element is touched only by the thread that drew its number
  std::atomic<bool> reused_any_{false};
};

ExtentTable TableOf(const PackJob& job, const std::vector<JournalRecord>& records) {
  ExtentTable table;
  table.entries = job.extents;
  table.checksums.reserve(job.checksum_count);
  for (const JournalRecord& record : records) {
    table.checksums.insert(table.checksums.end(), record.checksums.begin(), record.checksums.end());
  }
  return table;
}

std::vector<Digest128> DigestsOf(const std::vector<JournalRecord>& records) {
  std::vector<Digest128> digests;
  for (const JournalRecord& record : records) {
    digests.insert(digests.end(), record.digests.begin(), record.digests.end());
  }
  return digests;
}

// True if a journal's record has the shape of its unit. The checksum proves that the record is whole, not
// that it belongs to this table; a record that does not fit is made again.
bool Fits(const PackJob& job, const JournalRecord& record) {
  if (record.unit >= job.units()) return false;
  uint64_t chunks = 0;
  for (const ExtentEntry& entry : job.unit_extents(record.unit)) chunks += ChecksumChunkCount(entry.length);
  size_t digests = kPartCount;
  if (record.unit >= job.dense_extents && record.unit < job.first_expert_unit()) digests = 1;
  if (record.unit < job.dense_extents) {
    const auto [first, last] = job.dense_range(record.unit);
    digests = last - first;
  }
  return record.checksums.size() == chunks && record.digests.size() == digests;
}

// Checks that the usage profile belongs to this model. Possible only at the end: the source's digest is known
// once all of it was read.
absl::Status CheckProfileIsOfSource(const PackJob& job) {
  const std::string& source = job.manifest.provenance.source_digest;
  if (job.profile_source.empty() || job.profile_source == source) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(job.options.profile, ": the usage profile is of source ",
                                                    job.profile_source, ", but this model's is ", source));
}

}  // namespace

absl::StatusOr<PackOptions> PackOptionsFromText(const std::string& bits, const std::string& recipe, int group,
                                                const std::string& dense_bits, const std::string& layout) {
  RecipeOptions words;
  words.bits = bits;
  words.recipe = recipe;
  words.group = group;
  words.dense_bits = dense_bits;
  words.layout = layout;
  PackOptions options;
  ASSIGN_OR_RETURN(options.recipe, RecipeFromOptions(words));
  return options;
}

absl::StatusOr<PackEstimate> EstimatePack(const std::string& model_dir, const std::string& out_dir,
                                          const PackOptions& options) {
  ASSIGN_OR_RETURN(PackJob job, PreparePack(model_dir, options));
  PackEstimate estimate;
  estimate.tokenizer_files = std::move(job.tokenizer_files);
  estimate.chat_template = std::move(job.manifest.chat_template);
  estimate.payload_bytes = job.total_bytes();
  ASSIGN_OR_RETURN(estimate.free_bytes, FreeBytes(TargetFolder(out_dir)));
  estimate.resumable_bytes = AllocatedBytes(PartialFolder(out_dir));
  estimate.memory_bytes = job.worker_bytes() * WorkerCount(options.threads, job.units());
  estimate.rows_note = job.rows_note;
  estimate.dense_bytes = job.payload_bytes[static_cast<size_t>(PackFile::kDense)];
  estimate.dense_tensors = job.manifest.dense_tensors;
  for (uint32_t i = 0; i < job.expert_units.size(); ++i) {
    const ExpertUnit& unit = job.expert_units[i];
    estimate.experts.push_back(
        {unit.layer, job.unit_bytes(job.first_expert_unit() + i), job.manifest.expert_formats[unit.format]});
  }
  return estimate;
}

absl::StatusOr<PackSummary> PackModel(const std::string& model_dir, const std::string& out_dir,
                                      const PackOptions& options, const PackingProgressFn& progress,
                                      const std::atomic<bool>* cancel) {
  RETURN_IF_ERROR(CheckTarget(out_dir, options.force));
  ASSIGN_OR_RETURN(PackJob job, PreparePack(model_dir, options));
  ASSIGN_OR_RETURN(const std::unique_ptr<Staging> staging,
                   Staging::Open(out_dir, options.force, job.fingerprint, job.payload_bytes));
  std::vector<JournalRecord> found;
  for (const JournalRecord& record : staging->journal().found()) {
    if (Fits(job, record)) found.push_back(record);
  }
  ProgressMeter meter(progress, cancel, found.empty() ? "packing" : "resuming", job.total_bytes());
  Conversion conversion(job, staging.get(), &meter);
  conversion.UseFound(found);
  RETURN_IF_ERROR(conversion.Run(WorkerCount(options.threads, job.units())));
  meter.SetStage("finishing");
  job.manifest.provenance.source_digest = SourceDigest(job, DigestsOf(conversion.records()));
  RETURN_IF_ERROR(CheckProfileIsOfSource(job));
  PackSummary summary;
  ASSIGN_OR_RETURN(summary.bytes,
                   staging->Commit(&job.manifest, TableOf(job, conversion.records()), job.tokenizer_files));
  summary.model_id = job.manifest.model_id;
  summary.experts = job.expert_units.size();
  summary.seconds = meter.seconds();
  summary.resumed = conversion.reused_any();
  summary.old_profile = staging->old_profile();
  return summary;
}

// VerifyPack: checks every digest and every checksum of a pack.

namespace {

// Bytes read and checked at once: whole chunks.
constexpr uint64_t kReadBytes = 8 * kChecksumChunkBytes;

absl::Status VerifyPayload(const Pack& pack, uint32_t first, uint32_t last, PackFile which,
                           ProgressMeter* meter) {
  ASSIGN_OR_RETURN(const File file, File::OpenForRead(pack.file_path(which)));
  std::vector<std::byte> buffer;
  Hasher128 hasher;
  for (uint32_t extent = first; extent < last; ++extent) {
    const ExtentEntry& entry = pack.extents()[extent];
    for (uint64_t at = 0; at < entry.length; at += kReadBytes) {
      buffer.resize(std::min(kReadBytes, entry.length - at));
      const absl::Status read = file.ReadAt(entry.offset + at, absl::MakeSpan(buffer));
      if (!read.ok()) return Annotate(read, pack.ExtentName(extent));
      RETURN_IF_ERROR(VerifyChunks(pack, extent, at, buffer));
      RETURN_IF_ERROR(meter->Add(buffer.size()));
    }
    const absl::Span<const uint64_t> checksums = pack.checksums(extent);
    hasher.Update(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(checksums.data()), checksums.size() * 8));
  }
  // Each chunk matches its checksum; the manifest holds the digest of the checksums, so the chain ends at
  // model_id.
  if (hasher.Finish() != pack.manifest().payload[static_cast<size_t>(which)].digest) {
    return absl::DataLossError(
        absl::StrCat(file.path(), ": the digest of its checksums is not that of the manifest"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyPack(const std::string& dir, const PackingProgressFn& progress,
                        const std::atomic<bool>* cancel) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(dir));
  RETURN_IF_ERROR(pack->ReadTokenizerFiles().status());
  ProgressMeter meter(progress, cancel, "verifying",
                      pack->dense_bytes() + pack->row_bytes() + pack->total_expert_bytes());
  const uint32_t experts = pack->first_expert_extent();
  RETURN_IF_ERROR(VerifyPayload(*pack, 0, pack->dense_extent_count(), PackFile::kDense, &meter));
  if (pack->row_bytes() > 0) {
    RETURN_IF_ERROR(VerifyPayload(*pack, pack->dense_extent_count(), experts, PackFile::kRows, &meter));
  }
  return VerifyPayload(*pack, experts, pack->extent_count(), PackFile::kExperts, &meter);
}

}  // namespace sluice
