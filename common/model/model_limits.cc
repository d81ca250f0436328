#include "common/model/model_limits.h"

#include <cmath>

#include "common/status.h"

namespace sluice {
namespace {

absl::Status CheckRange(const std::string& subject, const char* field, uint64_t value, uint64_t low,
                        uint64_t high) {
  if (value < low || value > high) {
    return absl::InvalidArgumentError(absl::StrCat(subject, ": ", field, " is ", value, "; a number from ",
                                                   low, " to ", high, " is expected"));
  }
  return absl::OkStatus();
}

absl::Status Bad(const std::string& subject, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(subject, ": ", what));
}

absl::Status CheckRope(const RopeConfig& rope, uint32_t head_dim, const std::string& subject) {
  if (rope.kind == RopeKind::kNone) return absl::OkStatus();
  if (!std::isfinite(rope.theta) || rope.theta <= 0) {
    return Bad(subject, absl::StrCat("rope theta is ", rope.theta, "; a positive number is expected"));
  }
  if (!std::isfinite(rope.factor) || rope.factor <= 0) {
    return Bad(subject, absl::StrCat("rope factor is ", rope.factor, "; a positive number is expected"));
  }
  RETURN_IF_ERROR(CheckRange(subject, "rope dimensions", rope.dimensions, 2, head_dim));
  RETURN_IF_ERROR(
      CheckRange(subject, "rope original_max_position", rope.original_max_position, 0, kMaxPosition));
  if (rope.dimensions % 2 != 0) {
    return Bad(subject, absl::StrCat("rope dimensions ", rope.dimensions, " are odd"));
  }
  return absl::OkStatus();
}

absl::Status CheckAttention(const AttentionConfig& attention, const std::string& subject) {
  RETURN_IF_ERROR(CheckRange(subject, "attention heads", attention.heads, 1, kMaxHeads));
  RETURN_IF_ERROR(CheckRange(subject, "key/value heads", attention.kv_heads, 1, attention.heads));
  RETURN_IF_ERROR(CheckRange(subject, "head_dim", attention.head_dim, 1, kMaxHeadDim));
  RETURN_IF_ERROR(CheckRange(subject, "sliding window", attention.sliding_window, 0, kMaxPosition));
  if (attention.heads % attention.kv_heads != 0) {
    return Bad(subject, absl::StrCat(attention.kv_heads, " key/value heads do not divide ", attention.heads,
                                     " attention heads"));
  }
  if (!std::isfinite(attention.scale) || attention.scale <= 0) {
    return Bad(subject, absl::StrCat("attention scale is ", attention.scale));
  }
  return CheckRope(attention.rope, attention.head_dim, subject);
}

absl::Status CheckMoe(const MoeConfig& moe, const std::string& subject) {
  RETURN_IF_ERROR(CheckRange(subject, "experts", moe.experts, 0, kMaxExperts));
  RETURN_IF_ERROR(CheckRange(subject, "shared width", moe.shared_width, 0, kMaxWidth));
  if (!std::isfinite(moe.routed_scale)) {
    return Bad(subject, absl::StrCat("routed scale is ", moe.routed_scale));
  }
  if (moe.experts == 0) {
    return CheckRange(subject, "dense width", moe.dense_width, 1, kMaxWidth);
  }
  RETURN_IF_ERROR(CheckRange(subject, "experts per token", moe.top_k, 1, moe.experts));
  return CheckRange(subject, "expert width", moe.expert_width, 1, kMaxWidth);
}

absl::Status CheckIds(const std::vector<int32_t>& ids, const char* field, size_t max_count, uint32_t vocab,
                      const std::string& subject) {
  if (ids.size() > max_count) {
    return Bad(subject, absl::StrCat(ids.size(), " ", field, " ids, more than ", max_count));
  }
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= vocab) {
      return Bad(subject, absl::StrCat(field, " token id ", id, " is outside the vocabulary of ", vocab));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateModelConfig(const ModelConfig& config, const std::string& subject) {
  RETURN_IF_ERROR(CheckRange(subject, "vocabulary", config.vocab, 1, kMaxVocab));
  RETURN_IF_ERROR(CheckRange(subject, "hidden size", config.hidden, 1, kMaxHidden));
  RETURN_IF_ERROR(CheckRange(subject, "maximum position", config.max_position, 1, kMaxPosition));
  RETURN_IF_ERROR(CheckRange(subject, "layers", config.layers.size(), 1, kMaxLayers));
  if (!std::isfinite(config.norm_epsilon) || config.norm_epsilon < 0 || config.norm_epsilon > 1) {
    return Bad(subject, absl::StrCat("norm epsilon is ", config.norm_epsilon));
  }
  uint64_t experts = 0;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const std::string layer = absl::StrCat(subject, ": layer ", i);
    RETURN_IF_ERROR(CheckAttention(config.layers[i].attention, layer));
    RETURN_IF_ERROR(CheckMoe(config.layers[i].moe, layer));
    experts += config.layers[i].moe.experts;
  }
  RETURN_IF_ERROR(CheckRange(subject, "experts of all layers", experts, 0, kMaxExpertsTotal));
  RETURN_IF_ERROR(CheckIds(config.bos_ids, "bos", 1, config.vocab, subject));
  return CheckIds(config.eos_ids, "eos", kMaxEndIds, config.vocab, subject);
}

}  // namespace sluice
