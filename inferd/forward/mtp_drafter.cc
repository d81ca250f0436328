#include "inferd/forward/mtp_drafter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

// Class of confidence of a draft whose first token has this probability.
uint32_t ConfidenceOf(double probability) {
  return probability < 0.3 ? 0 : probability < 0.6 ? 1 : probability < 0.85 ? 2 : 3;
}

}  // namespace

MtpDrafter::MtpDrafter(const ModelConfig& config, const ForwardOptions& limits, Forward* forward, KvCache* kv,
                       Backend* backend)
    : hidden_(config.hidden),
      layers_(config.mtp_layers),
      rows_(std::min(kRows, limits.max_tokens)),
      limits_(limits),
      forward_(forward),
      kv_(kv),
      backend_(backend),
      kept_(limits.max_sequences),
      batch_(limits.max_tokens, limits.max_sequences) {
  tokens_.reserve(rows_);
  row_ids_.reserve(limits.max_tokens);
  lasts_.reserve(limits.max_sequences);
  chains_.reserve(limits.max_sequences);
  next_.reserve(limits.max_sequences);
}

uint64_t MtpDrafter::Bytes(const ModelConfig& config, const ForwardOptions& limits) {
  if (config.mtp_layers == 0) {
    return 0;
  }
  const uint64_t rows = std::min(kRows, limits.max_tokens);
  return (limits.max_sequences * rows + limits.max_tokens) * config.hidden * sizeof(float);
}

absl::StatusOr<std::unique_ptr<MtpDrafter>> MtpDrafter::Create(const ModelConfig& config,
                                                               const ForwardOptions& limits, Forward* forward,
                                                               KvCache* kv, Backend* backend) {
  if (config.mtp_layers == 0) {
    return absl::FailedPreconditionError("the model has no MTP layers");
  }
  // Pages behind the window are given back before the layers have written to them.
  if (kv->pages().window() > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no layer sees more than ", kv->pages().window(), " positions"));
  }
  std::unique_ptr<MtpDrafter> drafter(new MtpDrafter(config, limits, forward, kv, backend));
  const uint64_t row = config.hidden * sizeof(float);
  ASSIGN_OR_RETURN(const BufferId states,
                   backend->Allocate(limits.max_sequences * drafter->rows_ * row, BufferKind::kActivations));
  ASSIGN_OR_RETURN(const BufferId out, backend->Allocate(limits.max_tokens * row, BufferKind::kActivations));
  drafter->states_ = {{states, 0}, config.hidden};
  drafter->out_ = {{out, 0}, config.hidden};
  return drafter;
}

Rows MtpDrafter::RowOf(uint32_t slot, uint32_t index) const {
  return {states_.base + (uint64_t{slot} * rows_ + index) * hidden_ * sizeof(float), hidden_};
}

void MtpDrafter::Forget() { std::fill(kept_.begin(), kept_.end(), Kept{}); }

absl::Status MtpDrafter::Keep(const Text& text, uint32_t row, uint32_t count, uint32_t first) {
  Kept& kept = kept_[text.slot];
  if (kept.number != text.number || first < kept.first || first > kept.first + kept.count) {
    kept = {text.number, first, 0};
  }
  kept.count = first - kept.first;
  const uint32_t last = static_cast<uint32_t>(text.tokens.size()) - 1;  // the token that has no state yet
  count = std::min(count, last - std::min(last, first));
  while (count > 0) {
    if (kept.count == rows_) {
      RETURN_IF_ERROR(Fill(text));
    }
    const uint32_t part = std::min(count, rows_ - kept.count);
    RETURN_IF_ERROR(forward_->QueueHidden(row, part, RowOf(text.slot, kept.count)));
    kept.count += part;
    row += part;
    count -= part;
  }
  return absl::OkStatus();
}

// True if the kept states reach up to the text's last token.
bool MtpDrafter::IsCurrent(const Text& text) const {
  const Kept& kept = kept_[text.slot];
  return kept.number == text.number && kept.count > 0 && kept.first + kept.count + 1 == text.tokens.size();
}

// Computes K and V of kept states, and keeps the last ones: a draft continues from the last, and further
// layers must compute as many entries anew as there are tokens that they had to guess. Until then they see
// the last token in the place of unknown ones.
absl::Status MtpDrafter::Fill(const Text& text) {
  Kept& kept = kept_[text.slot];
  if (kept.number != text.number || kept.count <= layers_) {
    return absl::OkStatus();
  }
  const uint32_t rows = layers_ == 1 ? kept.count - 1 : kept.count;
  for (uint32_t layer = 0; layer < layers_; ++layer) {
    tokens_.clear();
    for (uint32_t i = 0; i < rows; ++i) {
      const size_t token = size_t{kept.first} + i + 1 + layer;
      tokens_.push_back(text.tokens[std::min(token, text.tokens.size() - 1)]);
    }
    batch_.Clear(0);
    batch_.Add(tokens_, {.first_position = kept.first, .pages = kv_->pages().table(text.slot)});
    RETURN_IF_ERROR(forward_->RunMtp(layer, layer == 0 ? RowOf(text.slot, 0) : out_, {},
                                     layer + 1 < layers_ ? out_ : Rows{}, &batch_));
    if (batch_.any_lost()) {
      break;
    }
  }
  for (uint32_t i = 0; i < layers_; ++i) {
    RETURN_IF_ERROR(backend_->queue().Combine({RowOf(text.slot, kept.count - layers_ + i),
                                               {},
                                               /*tokens=*/1,
                                               /*top_k=*/1,
                                               hidden_,
                                               {},
                                               RowOf(text.slot, i)}));
  }
  kept.first += kept.count - layers_;
  kept.count = layers_;
  return absl::OkStatus();
}

void MtpDrafter::BeginChains(absl::Span<const Request> requests) {
  const size_t most = std::min<size_t>(limits_.logit_rows, limits_.max_tokens / layers_);
  chains_.clear();
  for (uint32_t i = 0; i < requests.size() && chains_.size() < most; ++i) {
    if (requests[i].most > 0 && IsCurrent(requests[i].text)) {
      chains_.push_back({i, 0, kept_[requests[i].text.slot].count});
    }
  }
}

bool MtpDrafter::HasRoom(const Text& text, uint32_t position) const {
  const absl::Span<const uint32_t> pages = kv_->pages().table(text.slot);
  const uint32_t page = position / kPageTokens;
  return position < limits_.context && page < pages.size() && pages[page] != kNoPage;
}

// Plans the rows of the texts that draft a token number `stage`: in a model with one layer the last row, one
// position further each time, else all kept ones.
void MtpDrafter::PlanStage(uint32_t stage, absl::Span<const Request> requests,
                           absl::Span<const Draft> drafts) {
  batch_.Clear(0);
  row_ids_.clear();
  lasts_.clear();
  next_.clear();
  for (const Chain& chain : chains_) {
    const Text& text = requests[chain.request].text;
    const Draft& draft = drafts[chain.request];
    const Kept& kept = kept_[text.slot];
    const uint32_t position = kept.first + (layers_ == 1 ? stage : 0);
    if (stage >= std::min(requests[chain.request].most, most_drafts()) || draft.count < stage ||
        !HasRoom(text, position)) {
      continue;
    }
    Chain next{chain.request, batch_.tokens(), kept.count};
    tokens_.clear();
    for (uint32_t i = 0; i < kept.count; ++i) {
      const size_t token = size_t{kept.first} + i + 1 + stage;
      tokens_.push_back(token < text.tokens.size() ? text.tokens[token]
                                                   : draft.tokens[token - text.tokens.size()]);
      row_ids_.push_back(stage == 0 ? text.slot * rows_ + i : chain.row + i);
    }
    batch_.Add(tokens_, {.first_position = position, .pages = kv_->pages().table(text.slot)});
    lasts_.push_back(next.row + next.rows - 1);
    next_.push_back(next);
  }
  std::swap(chains_, next_);
}

absl::Status MtpDrafter::RunStage(uint32_t stage, absl::Span<Draft> drafts) {
  const uint32_t layer = std::min(stage, layers_ - 1);
  RETURN_IF_ERROR(forward_->RunMtp(layer, stage == 0 ? states_ : out_, row_ids_, out_, &batch_));
  ASSIGN_OR_RETURN(const LogitRows logits, forward_->MtpLogits(out_, lasts_, /*k=*/1, /*whole=*/false));
  for (uint32_t i = 0; i < chains_.size(); ++i) {
    Draft& draft = drafts[chains_[i].request];
    if (batch_.lost(lasts_[i])) {
      draft.count = 0;
      continue;
    }
    const double probability = std::exp(double{logits.values[i]} - logits.log_sum_exp[i]);
    draft.confidence = stage == 0 ? ConfidenceOf(probability) : draft.confidence;
    draft.tokens[draft.count++] = logits.ids[i];
  }
  return absl::OkStatus();
}

absl::Status MtpDrafter::Propose(absl::Span<const Request> requests, absl::Span<Draft> drafts) {
  std::fill(drafts.begin(), drafts.end(), Draft{});
  BeginChains(requests);
  for (const Chain& chain : chains_) {
    RETURN_IF_ERROR(Fill(requests[chain.request].text));
  }
  for (uint32_t stage = 0; stage < most_drafts(); ++stage) {
    PlanStage(stage, requests, drafts);
    if (chains_.empty()) {
      break;
    }
    RETURN_IF_ERROR(RunStage(stage, drafts));
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
