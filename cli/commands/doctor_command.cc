// `sluice doctor`: checks this host for problems and names remedies.

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/command_line.h"
#include "cli/doctor.h"
#include "cli/runtime_paths.h"
#include "cli/terminal.h"
#include "common/base/file_io.h"
#include "common/base/machine_facts.h"
#include "common/base/runtime_dir.h"
#include "common/base/status.h"
#include "common/base/unix_listener.h"
#include "pack/in_place/in_place_checksums.h"
#include "pack/in_place/in_place_payload.h"
#include "pack/pack.h"

namespace sluice::cli {
namespace {

// Enough to find a bad disk, few enough to be quick.
constexpr uint32_t kSampleExtents = 16;
constexpr absl::Duration kServerPatience = absl::Seconds(2);

struct PackSample {
  uint64_t extents = 0;
  uint64_t bytes = 0;
};

absl::Status VerifyOne(const Pack& pack, uint32_t extent, PackSample* sample) {
  const ExtentEntry& entry = pack.extents()[extent];
  const auto which = static_cast<PackFile>(entry.file);
  std::vector<std::byte> bytes(entry.length);
  if (pack.in_place()) {
    ASSIGN_OR_RETURN(const std::unique_ptr<InPlaceReader> reader, InPlaceReader::Open(pack));
    RETURN_IF_ERROR(reader->Read(which, entry.offset, absl::MakeSpan(bytes)));
    ASSIGN_OR_RETURN(const std::unique_ptr<LearnedChecksums> checksums, LearnedChecksums::Open(pack));
    RETURN_IF_ERROR(checksums->Check(pack, extent, 0, bytes));
  } else {
    ASSIGN_OR_RETURN(const File file, File::OpenForRead(pack.file_path(which)));
    RETURN_IF_ERROR(file.ReadAt(entry.offset, absl::MakeSpan(bytes)));
    RETURN_IF_ERROR(VerifyExtent(pack, extent, bytes));
  }
  ++sample->extents;
  sample->bytes += entry.length;
  return absl::OkStatus();
}

// Verifies random extents, other ones at every call, so that repeated runs cover more of the pack.
absl::Status VerifySample(const Pack& pack, PackSample* sample) {
  std::mt19937_64 random{std::random_device{}()};
  for (uint32_t i = 0; i < std::min(kSampleExtents, pack.extent_count()); ++i) {
    RETURN_IF_ERROR(VerifyOne(pack, static_cast<uint32_t>(random() % pack.extent_count()), sample));
  }
  return absl::OkStatus();
}

void ExaminePack(const std::string& dir, std::optional<uint64_t> budget, std::vector<Finding>* findings) {
  const absl::StatusOr<std::unique_ptr<Pack>> pack = Pack::Open(dir);
  if (!pack.ok()) {
    findings->push_back(CheckPackSample(dir, pack.status(), 0, 0));
    return;
  }
  const uint64_t pack_bytes = (*pack)->dense_bytes() + (*pack)->total_expert_bytes();
  findings->push_back(CheckMemory(ReadMemoryFacts().value_or(MemoryFacts()), budget, pack_bytes));
  findings->push_back(CheckDirectReads(ReadDiskFacts((*pack)->file_path(PackFile::kExperts))));
  PackSample sample;
  const absl::Status status = VerifySample(**pack, &sample);
  findings->push_back(CheckPackSample(dir, status, sample.extents, sample.bytes));
}

void ExamineSockets(const CommandContext& context, std::vector<Finding>* findings) {
  const absl::StatusOr<std::string> dir = EnsureRuntimeDir();
  findings->push_back(CheckRuntimeDir(dir.status(), dir.value_or("")));
  if (!dir.ok()) {
    return;
  }
  const RuntimePaths paths(*dir);
  absl::Status server = absl::NotFoundError("");
  if (ConnectUnix(paths.inferd_socket, UnixSocketType::kStream).ok()) {
    Client client(absl::StrCat("unix:", paths.inferd_socket), "", context.interrupt);
    server = client.CheckServing(kServerPatience);
  }
  findings->push_back(CheckServer(paths.inferd_socket, server));
}

std::vector<Finding> Examine(const CommandContext& context, const std::string& pack,
                             std::optional<uint64_t> budget) {
  const KernelFacts kernel = ReadKernelFacts();
  std::vector<Finding> findings = {
      CheckCpu(ReadCpuFacts()), CheckMemlock(kernel),     CheckOpenFiles(kernel),
      CheckIoUring(kernel),     CheckPidfd(kernel),       CheckSeals(kernel),
      CheckHugePages(kernel),   CheckGpu(ReadGpuFacts()), CheckNodes(ReadCpuTopology(AllowedCpus()))};
  for (const char* program : {"weightd", "inferd"}) {
    const std::string path = absl::StrCat(context.binary_dir, "/", program);
    findings.push_back(CheckProgram(path, access(path.c_str(), X_OK) == 0));
  }
  ExamineSockets(context, &findings);
  if (pack.empty()) {
    findings.push_back(CheckMemory(ReadMemoryFacts().value_or(MemoryFacts()), budget, 0));
  } else {
    ExaminePack(pack, budget, &findings);
  }
  return findings;
}

}  // namespace

int RunDoctor(const CommandContext& context, const std::vector<std::string>& args) {
  std::string pack;
  std::optional<uint64_t> budget;
  bool json = false;
  ArgParser parser("sluice doctor", "Looks at this host and says what is wrong, and what helps.");
  parser.Text("--pack", &pack, "PACK: looks at its disk too, and verifies a sample of it")
      .Size("--dram-budget", &budget, "memory for weights that must be free")
      .Flag("--json", &json, "prints one JSON object");
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  const std::vector<Finding> findings = Examine(context, pack, budget);
  const int worst = AnyFailure(findings) ? kExitFailed : kExitOk;
  if (json) {
    return std::max(worst, PrintJson(FindingsJson(findings)));
  }
  const absl::Status written = WriteStdout(FindingsText(findings, StdoutIsTerminal()));
  return written.ok() ? worst : kExitFailed;
}

}  // namespace sluice::cli
