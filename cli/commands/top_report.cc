#include "cli/commands/top_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/terminal.h"
#include "common/base/size.h"

namespace sluice::cli {
namespace {

constexpr int kBarWidth = 30;

// Rates: counter differences per second between two samples.
class Rates {
 public:
  // If not `comparable`, every rate is 0.
  Rates(absl::Duration elapsed, bool comparable)
      : seconds_(comparable ? absl::ToDoubleSeconds(elapsed) : 0) {}

  template <typename T>
  double Of(T before, T now) const {
    return seconds_ > 0 && now > before ? static_cast<double>(now - before) / seconds_ : 0;
  }

 private:
  const double seconds_;
};

struct WeightdRates {
  double resident = 0, joined = 0, ssd = 0, ssd_bytes = 0, evictions = 0;
};
struct InferdRates {
  double tokens = 0, prompt_tokens = 0, requests = 0, link_bytes = 0, stall = 0, hit_rate = 0,
         cached_share = 0;
};

WeightdRates RatesOf(const std::optional<WeightdFacts>& before, const WeightdFacts& now,
                     absl::Duration elapsed) {
  const WeightdFacts base = before.value_or(WeightdFacts());
  const Rates rates(elapsed, before.has_value() && base.life == now.life);
  return {rates.Of(base.resident_requests, now.resident_requests),
          rates.Of(base.joined_requests, now.joined_requests), rates.Of(base.ssd_requests, now.ssd_requests),
          rates.Of(base.ssd_bytes, now.ssd_bytes), rates.Of(base.evictions, now.evictions)};
}

InferdRates RatesOf(const std::optional<InferdFacts>& before, const InferdFacts& now,
                    absl::Duration elapsed) {
  const InferdFacts base = before.value_or(InferdFacts());
  // A restarted daemon's counters begin at zero again.
  const Rates rates(elapsed, before.has_value() && base.steps <= now.steps);
  InferdRates result = {rates.Of(base.generated_tokens, now.generated_tokens),
                        rates.Of(base.prompt_tokens, now.prompt_tokens),
                        rates.Of(base.finished, now.finished),
                        rates.Of(base.link_bytes, now.link_bytes),
                        rates.Of(base.stall_seconds, now.stall_seconds),
                        0,
                        0};
  const double asked = rates.Of(base.expert_requests, now.expert_requests);
  result.hit_rate = asked > 0 ? rates.Of(base.expert_hits, now.expert_hits) / asked : 0;
  const double cached = rates.Of(base.cached_prompt_tokens, now.cached_prompt_tokens);
  result.cached_share = result.prompt_tokens > 0 ? cached / result.prompt_tokens : 0;
  return result;
}

std::string Bar(uint64_t part, uint64_t whole) {
  const double share = whole == 0 ? 0 : std::min(1.0, static_cast<double>(part) / static_cast<double>(whole));
  const auto filled = static_cast<size_t>(share * kBarWidth + 0.5);
  return absl::StrCat("[", std::string(filled, '#'), std::string(kBarWidth - filled, ' '), "]",
                      absl::StrFormat("%4.0f %%", share * 100));
}

std::string BytesRate(double rate) { return absl::StrCat(FormatSize(static_cast<uint64_t>(rate)), "/s"); }

std::string InferdText(const TopSample& before, const TopSample& now, bool terminal) {
  if (!now.inferd.has_value()) {
    return absl::StrCat(Styled("inferd ", Style::kBold, terminal), " absent: ", now.inferd_why, "\n");
  }
  const InferdFacts& facts = *now.inferd;
  const InferdRates rates = RatesOf(before.inferd, facts, now.at - before.at);
  return absl::StrCat(
      Styled("inferd ", Style::kBold, terminal),
      absl::StrFormat(" %.1f tokens/s, prompt %.1f tokens/s, %.1f requests/s; %d running, %d waiting\n",
                      rates.tokens, rates.prompt_tokens, rates.requests, facts.running, facts.waiting),
      absl::StrFormat(
          "  experts resident %.1f %%, stalled %.0f %% of the time, link %s, failed requests %d\n",
          rates.hit_rate * 100, rates.stall * 100, BytesRate(rates.link_bytes), facts.failed),
      "  KV   ", Bar(facts.kv_used, facts.kv_total),
      absl::StrFormat("  %d of %d pages, %d kept; %.1f %% of the prompts were cached\n", facts.kv_used,
                      facts.kv_total, facts.kv_kept, rates.cached_share * 100));
}

std::string WeightdText(const TopSample& before, const TopSample& now, bool terminal) {
  if (!now.weightd.has_value()) {
    return absl::StrCat(Styled("weightd", Style::kBold, terminal), " absent: ", now.weightd_why, "\n");
  }
  const WeightdFacts& facts = *now.weightd;
  const WeightdRates rates = RatesOf(before.weightd, facts, now.at - before.at);
  std::string text = absl::StrCat(
      Styled("weightd", Style::kBold, terminal),
      absl::StrFormat(" requests/s: %.1f resident, %.1f joined, %.1f from SSD; SSD %s (%s)\n", rates.resident,
                      rates.joined, rates.ssd, BytesRate(rates.ssd_bytes), facts.io_engine),
      absl::StrFormat("  %d queued, %s in flight, %.1f evictions/s, errors %d, slow reads %d (read again %d, "
                      "won %d), timed out %d\n",
                      facts.queued, FormatSize(facts.in_flight_bytes), rates.evictions, facts.errors,
                      facts.slow_reads, facts.hedged_reads, facts.hedged_reads_won, facts.timed_out),
      "  DRAM ", Bar(facts.segment_bytes, facts.dram_budget),
      absl::StrFormat("  %s of %s, %s of it weights\n", FormatSize(facts.segment_bytes),
                      FormatSize(facts.dram_budget), FormatSize(facts.resident_bytes)));
  if (facts.sessions_lost > 0) {
    absl::StrAppendFormat(&text, "  sessions ended by weightd: %d, of these stopped %d\n",
                          facts.sessions_lost, facts.sessions_stopped);
  }
  for (const TopSession& session : facts.sessions) {
    absl::StrAppendFormat(&text, "  session %-16s %-7s holds %s, %d outstanding\n",
                          session.name.empty() ? "-" : session.name, session.state,
                          FormatSize(session.held_bytes), session.outstanding);
  }
  return text;
}

Json InferdJson(const TopSample& before, const TopSample& now) {
  if (!now.inferd.has_value()) {
    return Json::Object().Set("absent", now.inferd_why);
  }
  const InferdFacts& facts = *now.inferd;
  const InferdRates rates = RatesOf(before.inferd, facts, now.at - before.at);
  return Json::Object()
      .Set("tokens_per_second", rates.tokens)
      .Set("prompt_tokens_per_second", rates.prompt_tokens)
      .Set("requests_per_second", rates.requests)
      .Set("running", facts.running)
      .Set("waiting", facts.waiting)
      .Set("kv_pages_used", facts.kv_used)
      .Set("kv_pages_kept", facts.kv_kept)
      .Set("kv_pages", facts.kv_total)
      .Set("cached_prompt_share", rates.cached_share)
      .Set("hit_rate", rates.hit_rate)
      .Set("stall_share", rates.stall)
      .Set("link_bytes_per_second", rates.link_bytes)
      .Set("generated_tokens", facts.generated_tokens)
      .Set("requests_finished", facts.finished)
      .Set("requests_failed", facts.failed);
}

Json WeightdJson(const TopSample& before, const TopSample& now) {
  if (!now.weightd.has_value()) {
    return Json::Object().Set("absent", now.weightd_why);
  }
  const WeightdFacts& facts = *now.weightd;
  const WeightdRates rates = RatesOf(before.weightd, facts, now.at - before.at);
  Json sessions = Json::Array();
  for (const TopSession& session : facts.sessions) {
    sessions.Append(Json::Object()
                        .Set("name", session.name)
                        .Set("state", session.state)
                        .Set("held_bytes", session.held_bytes)
                        .Set("outstanding", session.outstanding));
  }
  return Json::Object()
      .Set("resident_requests_per_second", rates.resident)
      .Set("joined_requests_per_second", rates.joined)
      .Set("ssd_requests_per_second", rates.ssd)
      .Set("ssd_bytes_per_second", rates.ssd_bytes)
      .Set("evictions_per_second", rates.evictions)
      .Set("io_engine", facts.io_engine)
      .Set("queued", facts.queued)
      .Set("in_flight_bytes", facts.in_flight_bytes)
      .Set("dram_budget_bytes", facts.dram_budget)
      .Set("segment_bytes", facts.segment_bytes)
      .Set("resident_bytes", facts.resident_bytes)
      .Set("errors", facts.errors)
      .Set("slow_reads", facts.slow_reads)
      .Set("hedged_reads", facts.hedged_reads)
      .Set("hedged_reads_won", facts.hedged_reads_won)
      .Set("timed_out", facts.timed_out)
      .Set("sessions_lost", facts.sessions_lost)
      .Set("sessions_stopped", facts.sessions_stopped)
      .Set("sessions", sessions);
}

}  // namespace

std::string TopText(const TopSample& before, const TopSample& now, bool terminal) {
  return absl::StrCat(InferdText(before, now, terminal), WeightdText(before, now, terminal));
}

Json TopJson(const TopSample& before, const TopSample& now) {
  return Json::Object()
      .Set("seconds", absl::ToDoubleSeconds(now.at - before.at))
      .Set("inferd", InferdJson(before, now))
      .Set("weightd", WeightdJson(before, now));
}

}  // namespace sluice::cli
