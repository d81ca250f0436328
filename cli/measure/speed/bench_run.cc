#include "cli/measure/speed/bench_run.h"

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

struct SequenceTimes {
  absl::Status status;
  absl::Time start;
  absl::Time first;  // token
  absl::Time last;
  uint64_t tokens = 0;
  api::Timings timings;  // inferd's
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
  spec->mutable_cache()->set_bypass_prefix_cache(true);  // repetitions would find the prompt computed
  return request;
}

void RunSequence(Client* client, const api::GenerateStreamRequest& request, SequenceTimes* times) {
  times->start = absl::Now();
  times->status = client->GenerateStream(request, [times](const api::GenerateStreamResponse& event) {
    if (event.has_delta() && event.delta().token_ids_size() > 0) {
      times->last = absl::Now();
      if (times->tokens == 0) {
        times->first = times->last;
      }
      times->tokens += static_cast<uint64_t>(event.delta().token_ids_size());
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
}

// Sums over all layers since the start.
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

// A device that runs later tells nothing; nor does an inferd of before.
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
                                    bool server_times) {
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
  return sample;
}

}  // namespace sluice::cli
