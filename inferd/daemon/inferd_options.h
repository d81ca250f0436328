// Options of the inferd program. One table (ForEachOption) names each option with its help; flags, the TOML
// file and GetServerInfo all follow it.
//
// Thread safety: plain values; parsing belongs to main's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/http/http_server.h"
#include "daemon/option_values.h"
#include "inferd/forward/engine_options.h"
#include "inferd/serving/server_state.h"
#include "inferd/serving/serving_context.h"

namespace sluice::inferd {

struct InferdOptions {
  std::string pack;
  std::string weightd;              // default: weightd.sock in the runtime directory
  std::vector<std::string> listen;  // default: inferd.sock in the runtime directory
  std::vector<std::string> admin;   // default: inferd-admin.sock in the runtime directory
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_client_ca;
  std::vector<UserId> allow_uid;
  std::vector<GroupId> allow_group;
  std::string metrics;            // host:port; empty: off
  std::vector<std::string> http;  // default: none
  std::string http_keys;
  std::string http_tls_certificate;
  std::string http_tls_key;
  std::vector<std::string> http_cors;
  ByteSize http_max_body{16ull << 20};
  uint32_t http_connections = 2048;
  FileMode socket_mode;

  std::string device = "host";
  SizeOrShare device_budget;
  uint32_t context = 0;
  uint32_t parallel = 4;
  std::string kv = "f16";
  ByteSize kv_budget;
  uint32_t prefill_chunk = 512;
  uint32_t max_prefill_chunk = 0;
  bool prefix_cache = true;
  std::string prefix_file;
  ByteSize prefix_limit{4ull << 30};
  uint32_t threads = 0;
  bool pin_threads = false;
  uint32_t cpu_threads = 0;
  std::string preset = "exact";
  std::string sparsity;
  double sparsity_target = -1;
  double sparsity_threshold = -1;
  std::string sparsity_scope;
  std::vector<std::string> policy;
  bool prefetch = true;
  std::string trace;
  std::string replay_trace;
  double link_gbps = 0;
  double link_latency_us = 0;
  uint32_t tile_neurons = 0;
  std::string transport = "push";
  std::string slab_handle = "auto";
  std::string clock = "real";
  std::string virtual_costs;
  std::string measure_costs;

  uint32_t max_queue = 256;
  uint32_t max_queue_tokens = 1u << 20;
  ByteSize max_queue_bytes{64ull << 20};
  ByteSize max_unsent{1ull << 20};
  absl::Duration stall_timeout = absl::Seconds(30);
  absl::Duration max_request_time = absl::Hours(24);
  absl::Duration weightd_wait = absl::Seconds(30);
  absl::Duration drain_timeout = absl::Seconds(10);
  int parent_lifeline = -1;
  absl::Duration keep;
  std::string log_level = "info";
};

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

// Every option in flag syntax.
std::vector<OptionText> OptionTextsOf(const InferdOptions& options);
// Options that SIGHUP can change while inferd runs.
const std::set<std::string>& ReloadableInferdOptions();
// Returns `running` with the reloadable options of `read`.
InferdOptions WithReloaded(const InferdOptions& running, const InferdOptions& read);

// Calls visit(name, pointer to the member, help) for each option, in the order of --help. Help describes
// computed defaults; other defaults are shown from the member.
template <typename Visit>
void ForEachOption(InferdOptions* o, Visit visit) {
  visit("pack", &o->pack, "Folder of the pack to serve");
  visit("weightd", &o->weightd, "Unix socket of weightd (default: weightd.sock in the runtime directory)");
  visit("listen", &o->listen,
        "Where clients connect: unix:/path or 127.0.0.1:port; repeat for more (default: inferd.sock in the "
        "runtime directory)");
  visit("admin", &o->admin,
        "Where operators connect: unix:/path (default: inferd-admin.sock in the runtime directory)");
  visit("tls-certificate", &o->tls_certificate,
        "PEM file of the certificate chain of gRPC's TCP ports (default: no TLS, and loopback only)");
  visit("tls-key", &o->tls_key, "PEM file of that certificate's key");
  visit("tls-client-ca", &o->tls_client_ca,
        "PEM file of the authority that signs the certificates which gRPC clients must have over TLS");
  visit("allow-uid", &o->allow_uid,
        "User who may connect to the unix sockets, by name or number, beside this one and root; repeat for "
        "more");
  visit("allow-group", &o->allow_group,
        "Group whose members may connect to the clients' unix sockets; repeat for more");
  visit("socket-mode", &o->socket_mode, "Mode of the clients' socket files, octal");
  visit("metrics", &o->metrics, "Loopback port of Prometheus metrics, as 127.0.0.1:9401 (default: off)");

  visit("http", &o->http,
        "Where HTTP clients connect (OpenAI's API): 127.0.0.1:8080 or unix:/path; repeat for more (default: "
        "none)");
  visit("http-keys", &o->http_keys,
        "File of the bearer keys that HTTP clients must have: NAME SHA256 [parallel=N] [per-minute=N] a line "
        "(default: none is asked for)");
  visit("http-tls-certificate", &o->http_tls_certificate,
        "PEM file of the certificate chain of HTTP's TCP ports (default: no TLS)");
  visit("http-tls-key", &o->http_tls_key, "PEM file of that certificate's key");
  visit("http-cors", &o->http_cors,
        "Origin whose pages may ask over HTTP, as https://ui.example, or *; repeat for more (default: none)");
  visit("http-max-body", &o->http_max_body, "Maximum size of an HTTP request's body");
  visit("http-connections", &o->http_connections, "Maximum number of HTTP connections");

  visit("device", &o->device, "Where the model runs: host, sim or cuda");
  visit(
      "device-budget", &o->device_budget,
      "Memory of the device for all that lies there, as 8GiB, or for a share of the experts beside all else, "
      "as 50% (devices sim and cuda; default: all experts)");
  visit("context", &o->context,
        "Tokens of prompt and answer together (default: the smaller of the model's and 8192)");
  visit("parallel", &o->parallel, "Sequences that run together");
  visit("kv", &o->kv, "Type of the KV cache: f32, f16 or q8");
  visit("kv-budget", &o->kv_budget, "Memory of the KV cache (default: what all parallel contexts take)");
  visit("prefill-chunk", &o->prefill_chunk, "Prompt tokens of one step");
  visit("max-prefill-chunk", &o->max_prefill_chunk,
        "Maximum prefill chunk while steps wait for the disk (default: 2048 on device host with weights that "
        "do not "
        "fit into memory, else prefill-chunk)");
  visit("prefix-cache", &o->prefix_cache,
        "Reuse cached prefixes of earlier prompts, in free pages of the KV cache: on or off");
  visit("prefix-file", &o->prefix_file,
        "File that this is written to at the end and read from at the start; of another model or options it "
        "is not used (default: none)");
  visit("prefix-limit", &o->prefix_limit, "Maximum size of the prefix file");
  visit("threads", &o->threads, "Compute threads (default: the CPUs that this process may use)");
  visit(
      "pin-threads", &o->pin_threads,
      "Pin every compute thread to a CPU of its own, the memory nodes' in turn and cores before their second "
      "threads: on or off");
  visit("cpu-threads", &o->cpu_threads,
        "Of these, threads of the CPU that computes experts beside the device, where a policy lets it "
        "(default: half of them)");
  visit("preset", &o->preset, "Named set of policies");
  visit("sparsity", &o->sparsity,
        "Which product decides the neurons that count: none, up, gate or product (default: the preset's)");
  visit("sparsity-target", &o->sparsity_target,
        "Share of neurons left out, by the profile's thresholds, as 0.8 (default: the preset's)");
  visit("sparsity-threshold", &o->sparsity_threshold,
        "Absolute threshold for all layers (default: the preset's)");
  visit("sparsity-scope", &o->sparsity_scope,
        "Thresholds of each expert or one of the model: expert or model (default: the preset's)");
  visit("policy", &o->policy,
        "KEY=VALUE[,KEY=VALUE..]: one value of the preset, as `sluice preset show` lists them; repeat for "
        "more");
  visit("prefetch", &o->prefetch, "Ask for experts of the next layer ahead: on or off");
  visit("trace", &o->trace, "File to record router traces in, for cache_replay (default: none)");
  visit("replay-trace", &o->replay_trace,
        "Recorded router traces whose scores take the place of the routers' own (default: none)");
  visit("link-gbps", &o->link_gbps,
        "Bandwidth of the link in 1e9 bytes a second (device sim; default: unthrottled)");
  visit("link-latency-us", &o->link_latency_us, "Time before a copy's first byte (device sim)");
  visit("tile-neurons", &o->tile_neurons,
        "Neurons of an expert that travel and compute together, a multiple of 64 (devices sim and cuda; "
        "default: an "
        "eighth of the expert)");
  visit("transport", &o->transport,
        "Who copies experts into a device's memory: push (weightd) or pull (inferd, from what it leases)");
  visit("slab-handle", &o->slab_handle,
        "What names inferd's memory on the GPU to weightd: vmm (a descriptor), ipc (a legacy IPC handle), or "
        "auto: the first of them that works (device cuda)");
  visit("clock", &o->clock, "Times of link and device: real, or virtual by a table of costs (device sim)");
  visit("virtual-costs", &o->virtual_costs,
        "Milliseconds of one bf16 expert and of a layer's attention, as 3x, 30x or "
        "link_ms=15,compute_ms=5,attention_ms=0.3,cpu_ms=5,head_ms=0, or @FILE of --measure-costs (--clock "
        "virtual)");
  visit("measure-costs", &o->measure_costs,
        "File to write what this machine takes in, for --virtual-costs (--clock real; default: none)");

  visit("max-queue", &o->max_queue, "Maximum number of queued requests");
  visit("max-queue-tokens", &o->max_queue_tokens, "Maximum tokens of queued requests");
  visit("max-queue-bytes", &o->max_queue_bytes, "Maximum memory of queued requests");
  visit("max-unsent", &o->max_unsent, "Maximum unread output of a stream");
  visit("stall-timeout", &o->stall_timeout, "Timeout after which a stalled reader is cut");
  visit("max-request-time", &o->max_request_time, "Time limit of requests without a deadline");
  visit("weightd-wait", &o->weightd_wait, "Timeout of the wait for weightd at the start");
  visit("drain-timeout", &o->drain_timeout, "Timeout for answers to finish after SIGTERM");
  visit("parent-lifeline", &o->parent_lifeline, "Inherited descriptor at whose end inferd ends");
  visit("keep", &o->keep, "Stay so long after that");
  visit("log-level", &o->log_level, "Minimum severity that is logged: debug, info, warning or error");
}

}  // namespace sluice::inferd
