#include "cli/daemon_options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/size.h"

namespace sluice::cli {
namespace {

// Appends the options that were given.
class Settings {
 public:
  template <typename T>
  Settings& Add(const char* name, const std::optional<T>& value) {
    if (value.has_value()) {
      list_.push_back({name, absl::StrCat(*value)});
    }
    return *this;
  }
  Settings& Add(const char* name, const std::vector<std::string>& values) {
    for (const std::string& value : values) {
      list_.push_back({name, value});
    }
    return *this;
  }
  Settings& Add(const char* name, const std::optional<bool>& value) {
    if (value.has_value()) {
      list_.push_back({name, *value ? "on" : "off"});
    }
    return *this;
  }
  std::vector<OptionSetting> Take() { return std::move(list_); }

 private:
  std::vector<OptionSetting> list_;
};

}  // namespace

void CommonOptions::Declare(ArgParser* parser, bool needs_pack) {
  if (needs_pack) {
    parser
        ->Text("--model", &model,
               "M: a model's folder, a GGUF file, or a pack; what is no pack is packed once, into a cache "
               "(`sluice packs`)")
        .Choice("--bits", {"bf16", "f16", "q8", "q4", "q3", "q2", "file", "file-q4"}, &bits,
                "of a --model that is packed [q8 if memory holds it, else q4; of a GGUF file its own]")
        .RequireOneOf({"--model", "--pack"});
  }
  parser->Text("--pack", &pack, "PACK: the pack's folder");
  constexpr char kHint[] =
      "Options of the daemons, explained by --help-all: --device --device-budget --dram-budget --context\n"
      "--parallel --kv --kv-budget --prefill-chunk --threads --cpu-threads --preset --sparsity\n"
      "--sparsity-target --sparsity-threshold --sparsity-scope --policy --trace --replay-trace --io\n"
      "--direct --link-gbps --link-latency-us --tile-neurons --transport --slab-handle --clock\n"
      "of finding and starting them: --address --admin --keep --no-restart";
  parser->HiddenGroup("Options of the daemons (sizes as 512MiB, 2GB)", kHint)
      .Choice("--device", {"host", "sim", "cuda"}, &device, "where the experts compute [host]")
      .SizeOrShare("--device-budget", &device_budget,
                   "bytes of device memory for all that lies there, or the experts' share beside it as 50% "
                   "[all experts]")
      .Size("--dram-budget", &dram_budget,
            "bytes of memory for weights [the pack, at most 70 % of what is free]")
      .Number("--context", &context, "tokens of prompt and answer together [the model's, at most 8192]", 1,
              1u << 30)
      .Number("--parallel", &parallel, "sequences that run together [4]", 1, 4096)
      .Choice("--kv", {"f32", "f16", "q8"}, &kv, "type of the KV cache [f16]")
      .Size("--kv-budget", &kv_budget, "bytes of the KV cache [what context and parallel need]")
      .Number("--prefill-chunk", &prefill_chunk, "prompt tokens of a step [512]", 1, 1u << 20)
      .Number("--threads", &threads, "that compute [all CPUs]", 1, 4096)
      .Number("--cpu-threads", &cpu_threads,
              "of these, that compute experts beside the device, where a policy lets them [half]", 1, 4096)
      .Text("--preset", &preset, "NAME of the policies, see `sluice preset list` [exact]")
      .Choice("--sparsity", {"none", "up", "gate", "product"}, &sparsity,
              "which product decides the neurons that count [the preset's]")
      .Real("--sparsity-target", &sparsity_target,
            "share of neurons left out, by the thresholds of `sluice calibrate` [the preset's]", 0, 0.999)
      .Real("--sparsity-threshold", &sparsity_threshold, "one absolute threshold for all layers", 0, 1e9)
      .Choice("--sparsity-scope", {"expert", "model"}, &sparsity_scope,
              "thresholds of each expert, or one of the model [the preset's]")
      .Texts(
          "--policy", &policy,
          "KEY=VALUE[,KEY=VALUE..]: single values of the preset, see `sluice preset show`; repeat for more")
      .Text("--trace", &trace, "FILE: records what the routers choose, for cache_replay [none]")
      .Text("--replay-trace", &replay_trace, "FILE: routes as recorded there [by the model's routers]")
      .Choice("--io", {"uring", "pread"}, &io,
              "how weights are read [uring, pread where the kernel refuses it]")
      .OnOff("--direct", &direct, "reads past the page cache [on]")
      .Real("--link-gbps", &link_gbps, "of device sim", 0, 1e6)
      .Real("--link-latency-us", &link_latency_us, "of device sim", 0, 1e9)
      .Number("--tile-neurons", &tile_neurons, "that travel and compute together, device sim [an eighth]", 0,
              1u << 20)
      .Choice("--transport", {"push", "pull"}, &transport,
              "who copies experts there: weightd, or inferd from what it leases [push]")
      .Choice("--slab-handle", {"auto", "vmm", "ipc"}, &slab_handle,
              "what names inferd's memory on the GPU to weightd, device cuda [auto: the first that works]")
      .Choice("--clock", {"real", "virtual"}, &clock, "of device sim [real]");
  parser->HiddenGroup("Finding and starting them", kHint)
      .Text("--address", &address, "of a running inferd: unix:PATH or HOST:PORT [SLUICE_HOST, else started]")
      .Text("--admin", &admin,
            "of that inferd's operators: unix:PATH or PATH [inferd-admin.sock beside inferd.sock]")
      .TimeSpan("--keep", &keep, "leaves started daemons running for this long, as 10m [0]")
      .Flag("--no-restart", &no_restart, "does not start a daemon again that was killed");
  parser->Group("Options")
      .Flag("-v,--verbose", &verbose, "says what the launcher does, and where the logs are")
      .Flag("-q,--quiet", &quiet, "no progress, no line of options");
}

void CommonOptions::DeclareCosts(ArgParser* parser) {
  parser->Group("Costs on the virtual clock")
      .Text(
          "--virtual-costs", &virtual_costs,
          "3x, 30x, @FILE or KEY=MS,..: link_ms, compute_ms, cpu_ms of a bf16 expert, attention_ms, head_ms "
          "[the link's, 5, a third of the link's, 0.3, 0]")
      .Text("--measure-costs", &measure_costs,
            "FILE: writes what this machine takes, for --virtual-costs @FILE");
}

void CommonOptions::DeclareServe(ArgParser* parser) {
  parser->Group("HTTP")
      .Texts("--http", &http, "ADDRESS: 127.0.0.1:PORT or unix:PATH; repeat for more [127.0.0.1:8080]")
      .Text("--http-keys", &http_keys,
            "FILE: the keys that clients must have, as docs/reference/http.md says [none]")
      .Text("--http-tls-certificate", &http_tls_certificate, "FILE: PEM chain of the TCP ports [no TLS]")
      .Text("--http-tls-key", &http_tls_key, "FILE: its key")
      .Texts("--http-cors", &http_cors, "ORIGIN whose pages may ask, or *; repeat for more [none]");
  parser->Group("Cached prefixes")
      .Text("--prefix-file", &prefix_file, "FILE that they outlive the server in [none]");
}

std::vector<OptionSetting> CommonOptions::InferdSettings() const {
  return Settings()
      .Add("device", device)
      .Add("device-budget", device_budget)
      .Add("context", context)
      .Add("parallel", parallel)
      .Add("kv", kv)
      .Add("kv-budget", kv_budget)
      .Add("prefill-chunk", prefill_chunk)
      .Add("threads", threads)
      .Add("cpu-threads", cpu_threads)
      .Add("preset", preset)
      .Add("sparsity", sparsity)
      .Add("sparsity-target", sparsity_target)
      .Add("sparsity-threshold", sparsity_threshold)
      .Add("sparsity-scope", sparsity_scope)
      .Add("policy", policy)
      .Add("trace", trace)
      .Add("replay-trace", replay_trace)
      .Add("link-gbps", link_gbps)
      .Add("link-latency-us", link_latency_us)
      .Add("tile-neurons", tile_neurons)
      .Add("transport", transport)
      .Add("slab-handle", slab_handle)
      .Add("clock", clock)
      .Add("virtual-costs", virtual_costs)
      .Add("measure-costs", measure_costs)
      .Add("http", http)
      .Add("http-keys", http_keys)
      .Add("http-tls-certificate", http_tls_certificate)
      .Add("http-tls-key", http_tls_key)
      .Add("http-cors", http_cors)
      .Add("prefix-file", prefix_file)
      .Take();
}

std::vector<OptionSetting> CommonOptions::WeightdSettings() const {
  return Settings().Add("dram-budget", dram_budget).Add("io", io).Add("direct", direct).Take();
}

std::vector<std::string> AsFlags(const std::vector<OptionSetting>& settings) {
  std::vector<std::string> flags;
  for (const OptionSetting& setting : settings) {
    flags.push_back(absl::StrCat("--", setting.name));
    flags.push_back(setting.value);
  }
  return flags;
}

bool SameOptionValue(const std::string& a, const std::string& b) {
  if (a == b) {
    return true;
  }
  double number_a = 0;
  double number_b = 0;
  if (absl::SimpleAtod(a, &number_a) && absl::SimpleAtod(b, &number_b)) {
    return number_a == number_b;
  }
  const auto size_a = ParseSize(a);
  const auto size_b = ParseSize(b);
  return size_a.ok() && size_b.ok() && *size_a == *size_b;
}

bool IsListOption(const std::string& name) {
  return name == "policy" || name == "http" || name == "http-cors";
}

bool HoldsPolicies(const std::string& in_effect, const std::string& asked) {
  const std::vector<std::string> held = SplitList(in_effect);
  for (const std::string& one : SplitList(asked)) {
    const std::pair<std::string, std::string> want = absl::StrSplit(one, absl::MaxSplits('=', 1));
    const bool found = std::any_of(held.begin(), held.end(), [&](const std::string& text) {
      const std::pair<std::string, std::string> have = absl::StrSplit(text, absl::MaxSplits('=', 1));
      return have.first == want.first && SameOptionValue(have.second, want.second);
    });
    if (!found) {
      return false;
    }
  }
  return true;
}

}  // namespace sluice::cli
