#include "cli/measure/base_run.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, written as it lies");

constexpr char kMagic[] = "SLUICELP";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kTypeF32 = 1;
constexpr size_t kModelIdBytes = 32;

struct Wire {
  char magic[8];
  uint32_t version;
  uint32_t type;
  uint64_t positions;
  uint32_t vocab;
  uint32_t window;
  uint32_t stride;
  uint32_t zero;
  uint64_t token_hash;
  char model_id[kModelIdBytes];
  char reserved[48];
};
static_assert(sizeof(Wire) == kBaseRunHeaderBytes);

absl::Status CheckSame(const std::string& path, const char* what, uint64_t base, uint64_t run) {
  if (base != run) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the base run has ", what, " ", base, ", this run ", run));
  }
  return absl::OkStatus();
}

uint64_t RowOffset(const BaseRunHeader& header, uint64_t position) {
  return kBaseRunHeaderBytes + position * header.vocab * sizeof(float);
}

}  // namespace

uint64_t HashTokens(absl::Span<const int32_t> tokens) {
  return XXH3_64bits(tokens.data(), tokens.size() * sizeof(int32_t));
}

std::string SerializeBaseRunHeader(const BaseRunHeader& header) {
  Wire wire{};
  std::memcpy(wire.magic, kMagic, sizeof(wire.magic));
  wire.version = kVersion;
  wire.type = kTypeF32;
  wire.positions = header.positions;
  wire.vocab = header.vocab;
  wire.window = header.window;
  wire.stride = header.stride;
  wire.token_hash = header.token_hash;
  std::memcpy(wire.model_id, header.model_id.data(), std::min(header.model_id.size(), kModelIdBytes));
  return std::string(reinterpret_cast<const char*>(&wire), sizeof(wire));
}

absl::StatusOr<BaseRunHeader> ParseBaseRunHeader(const std::string& bytes, uint64_t file_bytes) {
  Wire wire{};
  if (bytes.size() < sizeof(wire)) {
    return absl::InvalidArgumentError("no base run: shorter than its header");
  }
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if (std::memcmp(wire.magic, kMagic, sizeof(wire.magic)) != 0) {
    return absl::InvalidArgumentError("no base run: the magic is wrong");
  }
  if (wire.version != kVersion || wire.type != kTypeF32) {
    return absl::InvalidArgumentError(
        absl::StrCat("version ", wire.version, " with values of type ", wire.type, " is unknown"));
  }
  const uint64_t payload = file_bytes - sizeof(wire);
  const uint64_t row_bytes = uint64_t{wire.vocab} * sizeof(float);
  if (row_bytes == 0 || payload % row_bytes != 0 || payload / row_bytes != wire.positions) {
    return absl::InvalidArgumentError(absl::StrCat("damaged: ", wire.positions, " positions of ", wire.vocab,
                                                   " values do not make ", file_bytes, " bytes"));
  }
  BaseRunHeader header;
  header.positions = wire.positions;
  header.vocab = wire.vocab;
  header.window = wire.window;
  header.stride = wire.stride;
  header.token_hash = wire.token_hash;
  header.model_id.assign(wire.model_id, strnlen(wire.model_id, kModelIdBytes));
  return header;
}

absl::StatusOr<std::unique_ptr<BaseRunWriter>> BaseRunWriter::Create(const std::string& path,
                                                                     const BaseRunHeader& header) {
  ASSIGN_OR_RETURN(PartialFile file, PartialFile::Create(path));
  RETURN_IF_ERROR(file.SetSize(RowOffset(header, header.positions)));
  RETURN_IF_ERROR(file.WriteAt(0, SerializeBaseRunHeader(header)));
  return std::unique_ptr<BaseRunWriter>(new BaseRunWriter(header, std::move(file)));
}

absl::Status BaseRunWriter::WriteRow(uint64_t position, absl::Span<const float> row) {
  return file_.WriteAt(RowOffset(header_, position), row);
}

absl::Status BaseRunWriter::Finish() { return file_.Commit(); }

absl::StatusOr<std::unique_ptr<BaseRunReader>> BaseRunReader::Open(const std::string& path,
                                                                   const BaseRunHeader& expected) {
  ASSIGN_OR_RETURN(File file, File::OpenForRead(path));
  ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  std::string bytes(std::min(kBaseRunHeaderBytes, size), '\0');
  RETURN_IF_ERROR(file.ReadAt(0, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())));
  absl::StatusOr<BaseRunHeader> header = ParseBaseRunHeader(bytes, size);
  if (!header.ok()) {
    return Annotate(header.status(), path);
  }
  RETURN_IF_ERROR(CheckSame(path, "vocabulary", header->vocab, expected.vocab));
  RETURN_IF_ERROR(CheckSame(path, "positions", header->positions, expected.positions));
  RETURN_IF_ERROR(CheckSame(path, "window", header->window, expected.window));
  RETURN_IF_ERROR(CheckSame(path, "stride", header->stride, expected.stride));
  RETURN_IF_ERROR(CheckSame(path, "a text with token hash", header->token_hash, expected.token_hash));
  return std::unique_ptr<BaseRunReader>(new BaseRunReader(*std::move(header), std::move(file)));
}

absl::Status BaseRunReader::ReadRow(uint64_t position, absl::Span<float> row) const {
  RETURN_IF_ERROR(
      file_.ReadAt(RowOffset(header_, position),
                   absl::MakeSpan(reinterpret_cast<std::byte*>(row.data()), row.size() * sizeof(float))));
  const auto wrong =
      std::find_if_not(row.begin(), row.end(), [](float value) { return std::isfinite(value); });
  if (wrong != row.end()) {
    return absl::DataLossError(absl::StrCat(file_.path(), ": damaged: position ", position, " of ",
                                            header_.positions, " has no log probability of token ",
                                            wrong - row.begin()));
  }
  return absl::OkStatus();
}

}  // namespace sluice::cli
