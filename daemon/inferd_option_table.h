// Options of inferd: their values, and the one table of them (daemon/option_values.h).
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/option_values.h"

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
  std::string speculate = "auto";
  uint32_t drafts = 0;
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
  bool self_test = true;
  std::string trace;
  std::string replay_trace;
  double link_gbps = 0;
  double link_latency_us = 0;
  uint32_t tile_neurons = 0;
  std::string transport = "push";
  std::string slab_handle = "auto";
  std::string prefill_math = "exact";
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

// Calls visit(spec, pointer to the member) for each option, in the order of --help.
template <typename Visit>
void ForEachOption(InferdOptions* o, Visit visit) {
  visit(OptionSpec("pack", "Folder of the pack to serve"), &o->pack);
  visit(OptionSpec("weightd", "Unix socket of weightd").Default("weightd.sock in the runtime directory"),
        &o->weightd);
  visit(OptionSpec("listen", "Where gRPC clients connect: unix:/path or 127.0.0.1:port; repeat for more")
            .Default("inferd.sock in the runtime directory; of `sluice serve` that one always")
            .PassedOn(OptionAudience::kServe),
        &o->listen);
  visit(OptionSpec("admin", "Where operators connect: unix:/path")
            .Default("inferd-admin.sock in the runtime directory"),
        &o->admin);
  visit(OptionSpec("tls-certificate", "PEM file of the certificate chain of gRPC's TCP ports")
            .Default("no TLS, and loopback only")
            .PassedOn(OptionAudience::kServe),
        &o->tls_certificate);
  visit(OptionSpec("tls-key", "PEM file of that certificate's key").PassedOn(OptionAudience::kServe),
        &o->tls_key);
  visit(OptionSpec(
            "tls-client-ca",
            "PEM file of the authority that signs the certificates which gRPC clients must have over TLS")
            .PassedOn(OptionAudience::kServe),
        &o->tls_client_ca);
  visit(OptionSpec("allow-uid",
                   "User who may connect to the unix sockets, by name or number, beside this one and root; "
                   "repeat for more")
            .Reloadable(),
        &o->allow_uid);
  visit(OptionSpec("allow-group",
                   "Group whose members may connect to the clients' unix sockets; repeat for more")
            .Reloadable(),
        &o->allow_group);
  visit(OptionSpec("socket-mode", "Mode of the clients' socket files, octal"), &o->socket_mode);
  visit(OptionSpec("metrics", "Loopback port of Prometheus metrics, as 127.0.0.1:9401")
            .Default("off")
            .Reloadable(),
        &o->metrics);
  visit(OptionSpec("http",
                   "Where HTTP clients connect (OpenAI's API): 127.0.0.1:8080 or unix:/path; repeat for more")
            .Default("none; of `sluice serve` 127.0.0.1:8080")
            .PassedOn(OptionAudience::kServe),
        &o->http);
  visit(OptionSpec("http-keys",
                   "File of the bearer keys that HTTP clients must have: NAME SHA256 [parallel=N] "
                   "[per-minute=N] a line")
            .Default("none is asked for")
            .PassedOn(OptionAudience::kServe),
        &o->http_keys);
  visit(OptionSpec("http-tls-certificate", "PEM file of the certificate chain of HTTP's TCP ports")
            .Default("no TLS")
            .PassedOn(OptionAudience::kServe),
        &o->http_tls_certificate);
  visit(OptionSpec("http-tls-key", "PEM file of that certificate's key").PassedOn(OptionAudience::kServe),
        &o->http_tls_key);
  visit(OptionSpec("http-cors",
                   "Origin whose pages may ask over HTTP, as https://ui.example, or *; repeat for more")
            .Default("none")
            .PassedOn(OptionAudience::kServe),
        &o->http_cors);
  visit(OptionSpec("http-max-body", "Maximum size of an HTTP request's body"), &o->http_max_body);
  visit(OptionSpec("http-connections", "Maximum number of HTTP connections"), &o->http_connections);
  visit(OptionSpec("device", "Where the model runs").Choices("host|sim|cuda").PassedOn(), &o->device);
  visit(OptionSpec("device-budget",
                   "Memory of the device for all that lies there, as 8GiB, or for a share of the experts "
                   "beside all else, as 50% (devices sim and cuda)")
            .Default("all experts")
            .PassedOn(),
        &o->device_budget);
  visit(OptionSpec("context", "Tokens of prompt and answer together")
            .Default("the smaller of the model's and 8192")
            .Range(0, 1073741824)
            .PassedOn(),
        &o->context);
  visit(OptionSpec("parallel", "Sequences that run together").Range(1, 4096).PassedOn(), &o->parallel);
  visit(OptionSpec("kv", "Type of the KV cache").Choices("f32|f16|q8").PassedOn(), &o->kv);
  visit(
      OptionSpec("kv-budget", "Memory of the KV cache").Default("what all parallel contexts take").PassedOn(),
      &o->kv_budget);
  visit(OptionSpec("prefill-chunk", "Prompt tokens of one step").Range(1, 1048576).PassedOn(),
        &o->prefill_chunk);
  visit(OptionSpec("max-prefill-chunk", "Maximum prefill chunk while steps wait for the disk")
            .Default("2048 on device host with weights that do not fit into memory, else prefill-chunk"),
        &o->max_prefill_chunk);
  visit(OptionSpec("prefix-cache", "Reuse cached prefixes of earlier prompts, in free pages of the KV cache"),
        &o->prefix_cache);
  visit(
      OptionSpec("prefix-file",
                 "File that cached prefixes are saved to while inferd runs and loaded from at its start; one "
                 "of another model or options is replaced")
          .Default("none")
          .PassedOn(OptionAudience::kServe),
      &o->prefix_file);
  visit(OptionSpec("prefix-limit", "Maximum size of the prefix file"), &o->prefix_limit);
  visit(
      OptionSpec(
          "speculate",
          "Verify drafts of the next tokens in a step, which never changes a token (mtp: made by the "
          "pack's MTP "
          "layers; ngram: what followed an earlier place of the text; both also under presets whose tokens "
          "depend on the batch; auto: under the others mtp if the pack has such layers, else ngram; stated: "
          "known answers of requests, for `sluice bench --accept`)")
          .Choices("auto|off|ngram|mtp|stated")
          .PassedOn(),
      &o->speculate);
  visit(OptionSpec("drafts", "Drafts verified in each step, whatever they cost; 0: as many as are worth it")
            .Range(0, 8)
            .PassedOn(),
        &o->drafts);
  visit(OptionSpec("threads", "Compute threads")
            .Default("the CPUs that this process may use")
            .Range(0, 4096)
            .PassedOn(),
        &o->threads);
  visit(OptionSpec("pin-threads",
                   "Pin every compute thread to a CPU of its own, the memory nodes' in turn and cores before "
                   "their second threads"),
        &o->pin_threads);
  visit(OptionSpec(
            "cpu-threads",
            "Of these, threads of the CPU that computes experts beside the device, where a policy lets it")
            .Default("half of them")
            .Range(0, 4096)
            .PassedOn(),
        &o->cpu_threads);
  visit(OptionSpec("preset", "Named set of policies, see `sluice preset list`").PassedOn(), &o->preset);
  visit(OptionSpec("sparsity", "Which product decides the neurons that count")
            .Choices("none|up|gate|product")
            .Default("the preset's")
            .PassedOn(),
        &o->sparsity);
  visit(OptionSpec("sparsity-target", "Share of neurons left out, by the profile's thresholds, as 0.8")
            .Default("the preset's")
            .PassedOn(),
        &o->sparsity_target);
  visit(OptionSpec("sparsity-threshold", "Absolute threshold for all layers")
            .Default("the preset's")
            .PassedOn(),
        &o->sparsity_threshold);
  visit(OptionSpec("sparsity-scope", "Thresholds of each expert, or one of the model")
            .Choices("expert|model")
            .Default("the preset's")
            .PassedOn(),
        &o->sparsity_scope);
  visit(OptionSpec("policy",
                   "KEY=VALUE[,KEY=VALUE..]: one value of the preset, as `sluice preset show` lists them; "
                   "repeat for more")
            .PassedOn(),
        &o->policy);
  visit(OptionSpec("prefetch", "Ask for experts of the next layer ahead"), &o->prefetch);
  visit(
      OptionSpec("self-test",
                 "Generate a token before the first client is admitted; off: the first request is the test"),
      &o->self_test);
  visit(OptionSpec("trace", "File to record router traces in, for cache_replay").Default("none").PassedOn(),
        &o->trace);
  visit(OptionSpec("replay-trace", "Recorded router traces whose scores take the place of the routers' own")
            .Default("none")
            .PassedOn(),
        &o->replay_trace);
  visit(OptionSpec("link-gbps", "Bandwidth of the link in 1e9 bytes a second (device sim)")
            .Default("unthrottled")
            .Range(0, 1000000)
            .PassedOn(),
        &o->link_gbps);
  visit(OptionSpec("link-latency-us", "Time before a copy's first byte (device sim)")
            .Range(0, 1000000000)
            .PassedOn(),
        &o->link_latency_us);
  visit(OptionSpec(
            "tile-neurons",
            "Neurons of an expert that travel and compute together, a multiple of 64 (devices sim and cuda)")
            .Default("an eighth of the expert")
            .Range(0, 1048576)
            .PassedOn(),
        &o->tile_neurons);
  visit(OptionSpec(
            "transport",
            "Who copies experts into a device's memory (push: weightd; pull: inferd, from what it leases)")
            .Choices("push|pull")
            .PassedOn(),
        &o->transport);
  visit(OptionSpec("slab-handle",
                   "What names inferd's memory on the GPU to weightd (device cuda; vmm: a descriptor; ipc: a "
                   "legacy IPC handle; auto: the first of them that works)")
            .Choices("auto|vmm|ipc")
            .PassedOn(),
        &o->slab_handle);
  visit(OptionSpec("prefill-math",
                   "Arithmetic of a prompt's dense products (device cuda; exact: own kernels, bits of device "
                   "host; fast: cuBLASLt, within a tolerance; auto: fast where cuBLASLt is there and passes "
                   "its self-test)")
            .Choices("exact|fast|auto")
            .PassedOn(),
        &o->prefill_math);
  visit(OptionSpec("clock", "Times of link and device, virtual by a table of costs (device sim)")
            .Choices("real|virtual")
            .PassedOn(),
        &o->clock);
  visit(OptionSpec("virtual-costs",
                   "Milliseconds of one bf16 expert and of a layer's attention, as 3x, 30x or "
                   "link_ms=15,compute_ms=5,attention_ms=0.3,cpu_ms=5,head_ms=0, or @FILE of --measure-costs "
                   "(--clock virtual)")
            .PassedOn(OptionAudience::kExperiments),
        &o->virtual_costs);
  visit(OptionSpec("measure-costs",
                   "File to write what this machine takes in, for --virtual-costs (--clock real)")
            .Default("none")
            .PassedOn(OptionAudience::kExperiments),
        &o->measure_costs);
  visit(OptionSpec("max-queue", "Maximum number of queued requests").Reloadable(), &o->max_queue);
  visit(OptionSpec("max-queue-tokens", "Maximum tokens of queued requests").Reloadable(),
        &o->max_queue_tokens);
  visit(OptionSpec("max-queue-bytes", "Maximum memory of queued requests").Reloadable(), &o->max_queue_bytes);
  visit(OptionSpec("max-unsent", "Maximum unread output of a stream").Reloadable(), &o->max_unsent);
  visit(OptionSpec("stall-timeout", "Timeout after which a stalled reader is cut").Reloadable(),
        &o->stall_timeout);
  visit(OptionSpec("max-request-time", "Time limit of requests without a deadline").Reloadable(),
        &o->max_request_time);
  visit(OptionSpec("weightd-wait", "Timeout of the wait for weightd at the start"), &o->weightd_wait);
  visit(OptionSpec("drain-timeout", "Timeout for answers to finish after SIGTERM").Reloadable(),
        &o->drain_timeout);
  visit(OptionSpec("parent-lifeline", "Inherited descriptor at whose end inferd ends"), &o->parent_lifeline);
  visit(OptionSpec("keep", "Stay so long after that").Reloadable(), &o->keep);
  visit(OptionSpec("log-level", "Minimum severity that is logged")
            .Choices("debug|info|warning|error")
            .Reloadable(),
        &o->log_level);
}

}  // namespace sluice::inferd
