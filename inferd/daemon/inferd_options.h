// The command line of the inferd program: parsing and checks of its options, and the options of the engine
// and the servers that follow from them.
//
// Thread safety: plain values; parsing belongs to main's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/http/http_server.h"
#include "daemon/inferd_option_table.h"
#include "inferd/forward/engine_options.h"
#include "inferd/serving/server_state.h"
#include "inferd/serving/serving_context.h"

namespace sluice::inferd {

// Names of the options set by a flag or the file.
using SetOptions = std::set<std::string>;

// Parsed command line.
struct InferdCommand {
  InferdOptions options;
  SetOptions set;
  std::optional<int> exit_code;  // set: nothing to serve (--help, --version, a usage error: already printed)
};

InferdCommand ParseInferdCommand(int argc, const char* const* argv);

// INVALID_ARGUMENT naming the option: values unsupported in every build, and options of another device.
absl::Status CheckInferdOptions(const InferdOptions& options, const SetOptions& set);

// FAILED_PRECONDITION if `device` computes on a CPU that cannot run the host kernels (`has_isa`). Device cuda
// computes nothing there, unless misses go to the CPU; that check reports itself.
absl::Status CheckCpuOf(const std::string& device, bool has_isa);

EngineOptions EngineOptionsOf(const InferdOptions& options);
QueueLimits QueueLimitsOf(const InferdOptions& options);
ServingLimits ServingLimitsOf(const InferdOptions& options);
// Options of the HTTP server except for its allowed peers. INVALID_ARGUMENT: an invalid address.
absl::StatusOr<HttpServerOptions> HttpOptionsOf(const InferdOptions& options);

// Every option with its value in effect: as set, or as the default was resolved in `plan` and with `threads`
// compute threads.
std::vector<ReportedOption> ReportOptionsOf(const InferdOptions& options, const SetOptions& set,
                                            const EnginePlan& plan, uint32_t threads);

}  // namespace sluice::inferd
