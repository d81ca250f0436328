#include "cli/measure/bench_run.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "kernels/cpu/read_bandwidth.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{4} << 30;
// Larger than the caches of a CPU with a few cores.
constexpr uint64_t kLeastBytes = uint64_t{256} << 20;
constexpr uint64_t kHugePage = uint64_t{2} << 20;

}  // namespace

ReadBaseSize SizeOfReadBase(uint64_t pack_bytes, uint64_t usable_bytes) {
  const uint64_t wanted = std::max(std::min(pack_bytes, kMaxBytes) / kHugePage, uint64_t{1}) * kHugePage;
  const uint64_t bytes = std::min(wanted, usable_bytes / 2 / kHugePage * kHugePage);
  if (bytes == wanted) {
    return {bytes, ""};
  }
  const std::string free = absl::StrCat(FormatSize(usable_bytes), " are free for this process");
  if (bytes < std::min(wanted, kLeastBytes)) {
    return {0,
            absl::StrCat("the read bandwidth is not measured: ", free, ", and half of them is less than the ",
                         FormatSize(std::min(wanted, kLeastBytes)), " that it takes")};
  }
  return {bytes, absl::StrCat("the read bandwidth is measured over ", FormatSize(bytes), ", not ",
                              FormatSize(wanted), ": ", free)};
}

absl::StatusOr<double> MeasureReadBase(uint64_t bytes, uint32_t threads) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoToStatus(errno, absl::StrCat("read bandwidth: mapping ", bytes, " bytes"));
  }
  const absl::Cleanup unmap = [memory, bytes] { munmap(memory, bytes); };
  madvise(memory, bytes, MADV_HUGEPAGE);  // best effort: small pages give a lower base
  std::memset(memory, 1, bytes);          // pages that were never written would all read the one zero page
  ReadBandwidthOptions options;
  options.threads = threads;
  const absl::Span<const std::byte> region(static_cast<const std::byte*>(memory), bytes);
  ASSIGN_OR_RETURN(const ReadBandwidth measured,
                   MeasureReadBandwidth(absl::MakeConstSpan(&region, 1), options));
  return measured.best;
}

}  // namespace sluice

namespace sluice::cli {
namespace {

const char* NameOf(Bound bound) {
  switch (bound) {
    case Bound::kMemory:
      return "memory";
    case Bound::kInstructions:
      return "instructions";
    default:
      return "-";
  }
}

void SetBound(const ExplainRates& rates, ExplainLine* line) {
  const double product_rate = line->part == "experts" ? rates.expert_products : rates.products;
  const double reading = rates.read > 0 ? line->bytes / rates.read : 0;
  const double computing = product_rate > 0 ? line->products / product_rate : 0;
  line->bound_seconds = std::max(reading, computing);
  if (line->bound_seconds > 0) {
    line->bound = reading >= computing ? Bound::kMemory : Bound::kInstructions;
  }
}

double Reached(const ExplainLine& line) { return line.seconds > 0 ? line.bound_seconds / line.seconds : 0; }

std::string LineText(const ExplainLine& line) {
  std::string text =
      absl::StrFormat("  %-10s %9.3f %6.1f %%", line.part, 1e3 * line.seconds, 100 * line.share);
  if (line.bytes > 0 || line.products > 0) {
    absl::StrAppendFormat(&text, " %9.2f %9.3f", line.bytes / 1e6, line.products / 1e9);
  }
  if (line.bound != Bound::kNone) {
    absl::StrAppendFormat(&text, "  %-12s %9.3f %6.1f %%", NameOf(line.bound), 1e3 * line.bound_seconds,
                          100 * Reached(line));
  }
  return text + "\n";
}

}  // namespace

ExplainRows RowsOf(const BenchTest& test, uint32_t experts, uint32_t top_k, uint32_t chunk) {
  ExplainRows rows;
  const uint64_t step = test.generate > 0 ? test.batch : std::min<uint64_t>(test.prompt * test.batch, chunk);
  rows.step = static_cast<uint32_t>(std::clamp<uint64_t>(step, 1, 512));
  if (experts > 0) {
    rows.expert = std::clamp(rows.step * top_k / experts, 1u, rows.step);
  }
  return rows;
}

Explanation Explain(const BenchResult& result, const ExplainRates& rates, const ExplainRows& rows) {
  Explanation out;
  out.rates = rates;
  out.rows = rows;
  double tokens = 0;
  double busy = 0;
  double stall = 0;
  std::vector<PartSample> parts;
  for (const BenchSample& sample : result.samples) {
    tokens += static_cast<double>(sample.tokens);
    busy += sample.busy_seconds;
    stall += sample.stall_seconds;
    parts.resize(std::max(parts.size(), sample.parts.size()));
    for (size_t i = 0; i < sample.parts.size(); ++i) {
      parts[i].part = sample.parts[i].part;
      parts[i].seconds += sample.parts[i].seconds;
      parts[i].bytes += sample.parts[i].bytes;
      parts[i].products += sample.parts[i].products;
    }
  }
  if (parts.empty() || tokens <= 0 || busy <= 0) {
    return out;
  }
  out.seconds = busy / tokens;
  double rest = busy - stall;
  const auto line_of = [&](const std::string& part, double seconds) {
    ExplainLine line;
    line.part = part;
    line.seconds = seconds / tokens;
    line.share = seconds / busy;
    return line;
  };
  for (const PartSample& part : parts) {
    ExplainLine line = line_of(part.part, part.seconds);
    line.bytes = static_cast<double>(part.bytes) / tokens;
    line.products = static_cast<double>(part.products) / tokens;
    SetBound(rates, &line);
    out.lines.push_back(std::move(line));
    rest -= part.seconds;
  }
  out.lines.push_back(line_of("waits", stall));
  out.lines.push_back(line_of("between", std::max(0.0, rest)));
  return out;
}

std::string ExplainText(const BenchResult& result, const Explanation& explanation) {
  std::string text = absl::StrCat(result.preset, " ", result.test.name(), " x ", result.test.batch, ": ");
  if (explanation.lines.empty()) {
    return text + "this device does not tell what its parts took\n";
  }
  const ExplainRates& rates = explanation.rates;
  absl::StrAppendFormat(&text, "%.3f ms a token", 1e3 * explanation.seconds);
  if (rates.read > 0) {
    absl::StrAppendFormat(&text, ", memory read at %.1f GB/s", rates.read / 1e9);
  }
  if (rates.products > 0) {
    absl::StrAppendFormat(&text,
                          ", %.1f (dense) and %.1f (experts) billion multiply-adds a second from caches with "
                          "%d and %d rows",
                          rates.products / 1e9, rates.expert_products / 1e9, explanation.rows.step,
                          explanation.rows.expert);
  }
  absl::StrAppend(&text,
                  "\n  part              ms    share        MB       GMA  bound by            ms  reached\n");
  for (const ExplainLine& line : explanation.lines) {
    absl::StrAppend(&text, LineText(line));
  }
  return text;
}

Json ExplainJson(const Explanation& explanation) {
  const auto optional = [](bool known, double value) { return known ? Json(value) : Json(); };
  Json lines = Json::Array();
  for (const ExplainLine& line : explanation.lines) {
    const bool bound = line.bound != Bound::kNone;
    Json json = Json::Object();
    json.Set("part", line.part)
        .Set("ms", 1e3 * line.seconds)
        .Set("share", line.share)
        .Set("bytes", line.bytes)
        .Set("products", line.products)
        .Set("bound", bound ? Json(NameOf(line.bound)) : Json())
        .Set("bound_ms", optional(bound, 1e3 * line.bound_seconds))
        .Set("reached", optional(bound, Reached(line)));
    lines.Append(std::move(json));
  }
  const ExplainRates& rates = explanation.rates;
  Json json = Json::Object();
  json.Set("ms_per_token", 1e3 * explanation.seconds)
      .Set("read_bytes_per_second", optional(rates.read > 0, rates.read))
      .Set("products_per_second", optional(rates.products > 0, rates.products))
      .Set("expert_products_per_second", optional(rates.expert_products > 0, rates.expert_products))
      .Set("rows", explanation.rows.step)
      .Set("rows_per_expert", explanation.rows.expert)
      .Set("parts", std::move(lines));
  return json;
}

}  // namespace sluice::cli

namespace sluice::cli {
namespace {

struct SequenceTimes {
  absl::Status status;
  absl::Time start;
  absl::Time first;  // arrival of the first token
  absl::Time last;
  uint64_t tokens = 0;
  std::vector<uint32_t> ids;
  api::Timings timings;  // inferd's own
};

api::GenerateStreamRequest RequestOf(const BenchTest& test, const BenchInput& input, size_t sequence) {
  api::GenerateStreamRequest request;
  api::GenerationSpec* spec = request.mutable_spec();
  for (const int32_t id : input.prompts[sequence]) {
    spec->mutable_token_ids()->add_ids(static_cast<uint32_t>(id));
  }
  spec->mutable_sampling()->set_temperature(static_cast<float>(input.temperature));
  if (input.temperature > 0) {
    spec->mutable_sampling()->set_seed(input.seed * 1000 + sequence);
  }
  spec->mutable_stopping()->set_max_tokens(static_cast<uint32_t>(std::max<uint64_t>(1, test.generate)));
  spec->mutable_stopping()->set_ignore_eos(true);
  spec->mutable_output()->set_return_text(false);
  spec->mutable_cache()->set_bypass_prefix_cache(
      true);  // otherwise later repetitions would find the prompt in the cache
  if (!input.drafts.empty()) {
    *spec->mutable_stated_drafts() = input.drafts[sequence];
  }
  return request;
}

void RunSequence(Client* client, const api::GenerateStreamRequest& request, SequenceTimes* times) {
  times->start = SteadyNow();
  times->status = client->GenerateStream(request, [times](const api::GenerateStreamResponse& event) {
    if (event.has_delta() && event.delta().token_ids_size() > 0) {
      times->last = SteadyNow();
      if (times->tokens == 0) {
        times->first = times->last;
      }
      times->tokens += static_cast<uint64_t>(event.delta().token_ids_size());
      times->ids.insert(times->ids.end(), event.delta().token_ids().begin(), event.delta().token_ids().end());
    }
    if (event.has_finished()) {
      times->timings = event.finished().timings();
    }
    return absl::OkStatus();
  });
}

void AddCounters(const api::Counters& before, const api::Counters& after, BenchSample* sample) {
  sample->steps = after.steps() - before.steps();
  sample->prefetches = after.prefetch_issued() - before.prefetch_issued();
  sample->prefetches_useful = after.prefetch_useful() - before.prefetch_useful();
  sample->busy_seconds =
      after.prompt_seconds() - before.prompt_seconds() + after.decode_seconds() - before.decode_seconds();
  sample->generated = after.generated_tokens() - before.generated_tokens();
  sample->expert_requests = after.expert_requests() - before.expert_requests();
  sample->expert_hits = after.expert_hits() - before.expert_hits();
  sample->predictions = after.predictions() - before.predictions();
  sample->predictions_right = after.predictions_right() - before.predictions_right();
  sample->predictions_wanted = after.predictions_wanted() - before.predictions_wanted();
  sample->bytes_ssd = after.bytes_ssd() - before.bytes_ssd();
  sample->bytes_link = after.bytes_link() - before.bytes_link();
  sample->weight_bytes = after.weight_bytes_touched() - before.weight_bytes_touched();
  sample->device_waits = after.device_waits() - before.device_waits();
  sample->device_kernels = after.device_kernels() - before.device_kernels();
  sample->device_graph_launches = after.device_graph_launches() - before.device_graph_launches();
  sample->device_graph_changes = after.device_graph_changes() - before.device_graph_changes();
  sample->fork_joins = after.fork_joins() - before.fork_joins();
  sample->fork_join_seconds = after.fork_join_seconds() - before.fork_join_seconds();
  sample->kernel_seconds = after.kernel_seconds() - before.kernel_seconds();
  sample->stall_seconds = after.stall_seconds() - before.stall_seconds();
  sample->decode_seconds = after.decode_seconds() - before.decode_seconds();
  sample->decode_steps = after.decode_steps() - before.decode_steps();
  const auto increase = [](const auto& to, const auto& from) {
    std::vector<uint64_t> counts(to.begin(), to.end());
    for (size_t i = 0; i < counts.size() && i < static_cast<size_t>(from.size()); ++i) {
      counts[i] -= from[static_cast<int>(i)];
    }
    return counts;
  };
  sample->drafts_verified = increase(after.drafts_verified(), before.drafts_verified());
  sample->drafts_accepted = increase(after.drafts_accepted(), before.drafts_accepted());
}

// Sums the counters of all layers since the start.
BenchSample LayerSums(const api::GetStatsResponse& stats) {
  BenchSample sum;
  for (const api::LayerStats& layer : stats.layers()) {
    sum.late += layer.experts().late();
    sum.dropped += layer.routing().dropped() + layer.experts().skipped();
    sum.exchanged += layer.routing().exchanged();
    sum.pairs += layer.routing().pairs();
    sum.neurons += layer.neurons().requested();
    sum.neuron_hits += layer.neurons().hits();
    sum.neurons_predicted += layer.neurons().predicted();
    sum.neurons_right += layer.neurons().right();
    sum.neurons_wanted += layer.neurons().wanted();
    sum.bytes_dram += layer.bytes().dram();
    for (const api::DepthPredictions& at : layer.depths()) {
      sum.depths.push_back({layer.layer(), at.depth(), at.predictions().predicted(), at.predictions().right(),
                            at.predictions().wanted()});
    }
  }
  for (const api::LayerSparsity& layer : stats.sparsity()) {
    sum.sparse_neurons += layer.neurons();
    sum.sparse_kept += layer.kept();
  }
  return sum;
}

void AddLayers(const api::GetStatsResponse& before, const api::GetStatsResponse& after, BenchSample* sample) {
  const BenchSample from = LayerSums(before);
  const BenchSample to = LayerSums(after);
  for (const auto member : kLayerCounts) {
    sample->*member = to.*member - from.*member;
  }
  sample->depths = to.depths;
  AddDepths(from.depths, -1, &sample->depths);
  sample->load_seconds = after.times().load_seconds() - before.times().load_seconds();
}

// An asynchronous device reports no parts, nor does an older inferd.
void AddParts(const api::GetStatsResponse& before, const api::GetStatsResponse& after, BenchSample* sample) {
  double seconds = 0;
  for (int i = 0; i < std::min(before.parts_size(), after.parts_size()); ++i) {
    const api::PartWork& from = before.parts(i);
    const api::PartWork& to = after.parts(i);
    sample->parts.push_back({to.part(), to.seconds() - from.seconds(), to.bytes() - from.bytes(),
                             to.products() - from.products()});
    seconds += sample->parts.back().seconds;
  }
  if (seconds <= 0) {
    sample->parts.clear();
  }
}

absl::StatusOr<BenchSample> SampleOf(const BenchTest& test, const std::vector<SequenceTimes>& sequences) {
  BenchSample sample;
  absl::Time start = absl::InfiniteFuture();
  absl::Time end = absl::InfinitePast();
  const uint64_t wanted = std::max<uint64_t>(1, test.generate);
  for (const SequenceTimes& sequence : sequences) {
    RETURN_IF_ERROR(sequence.status);
    if (sequence.tokens != wanted) {
      return absl::InternalError(
          absl::StrCat("inferd generated ", sequence.tokens, " tokens, ", wanted, " were asked for"));
    }
    start = std::min(start, sequence.start);
    end = std::max(end, sequence.last);
    const double n = static_cast<double>(sequences.size());
    sample.ttft_ms += absl::ToDoubleMilliseconds(sequence.first - sequence.start) / n;
    if (wanted >= 2) {
      sample.tpot_ms +=
          absl::ToDoubleMilliseconds(sequence.last - sequence.first) / static_cast<double>(wanted - 1) / n;
    }
  }
  sample.seconds = absl::ToDoubleSeconds(end - start);
  sample.tokens = test.batch * (test.prompt + test.generate);
  return sample;
}

void UseServerTimes(const BenchTest& test, const std::vector<SequenceTimes>& sequences, BenchSample* sample) {
  sample->ttft_ms = sample->tpot_ms = 0;
  for (const SequenceTimes& sequence : sequences) {
    const double n = static_cast<double>(sequences.size());
    sample->ttft_ms += 1e3 * sequence.timings.prompt_seconds() / n;
    if (test.generate >= 2) {
      sample->tpot_ms += 1e3 * sequence.timings.decode_seconds() / static_cast<double>(test.generate - 1) / n;
    }
  }
  sample->seconds = sample->busy_seconds;
}

}  // namespace

BenchInput RandomInput(const BenchTest& test, uint64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  BenchInput input;
  for (uint64_t i = 0; i < test.batch; ++i) {
    std::vector<int32_t>& prompt = input.prompts.emplace_back();
    for (uint64_t j = 0; j < std::max<uint64_t>(1, test.prompt); ++j) {
      prompt.push_back(static_cast<int32_t>(random() % vocab));
    }
  }
  return input;
}

absl::StatusOr<BenchSample> RunOnce(Client* client, const BenchTest& test, const BenchInput& input,
                                    bool server_times, BenchAnswers* answers) {
  std::vector<api::GenerateStreamRequest> requests;
  for (uint64_t i = 0; i < test.batch; ++i) {
    requests.push_back(RequestOf(test, input, i));
  }
  ASSIGN_OR_RETURN(const api::GetStatsResponse before, client->GetStats());
  std::vector<SequenceTimes> times(test.batch);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < test.batch; ++i) {
    threads.emplace_back(RunSequence, client, std::cref(requests[i]), &times[i]);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  ASSIGN_OR_RETURN(const api::GetStatsResponse after, client->GetStats());
  ASSIGN_OR_RETURN(BenchSample sample, SampleOf(test, times));
  AddCounters(before.counters(), after.counters(), &sample);
  AddLayers(before, after, &sample);
  AddParts(before, after, &sample);
  if (server_times) {
    UseServerTimes(test, times, &sample);
  }
  if (answers != nullptr) {
    answers->clear();
    for (SequenceTimes& sequence : times) {
      answers->push_back(std::move(sequence.ids));
    }
  }
  return sample;
}

}  // namespace sluice::cli
