#include "common/model/hf_fields.h"

#include <algorithm>
#include <cmath>

#include "common/base/status.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr size_t kMaxListed = 1 << 16;

// Members of config.json that no forward pass reads: transformers' own bookkeeping, training, generation
// defaults of old files, and token ids (hf_config.cc reads the two that matter).
constexpr std::string_view kInertFields[] = {
    // bookkeeping
    "_name_or_path",
    "_commit_hash",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "architectures",
    "auto_map",
    "dtype",
    "model_type",
    "name_or_path",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "transformers.js_config",
    "use_bfloat16",
    "tf_legacy_loss",
    "return_dict",
    "output_hidden_states",
    "output_attentions",
    "use_cache",
    "use_return_dict",
    "id2label",
    "label2id",
    "problem_type",
    "task_specific_params",
    "finetuning_task",
    "tokenizer_class",
    "prefix",
    "pruned_heads",
    "chunk_size_feed_forward",
    "is_encoder_decoder",
    "is_decoder",
    "cross_attention_hidden_size",
    "add_cross_attention",
    "tie_encoder_decoder",
    "pretraining_tp",
    "ep_size",
    "keys_to_ignore_at_inference",
    // training
    "attention_dropout",
    "attn_pdrop",
    "resid_pdrop",
    "embd_pdrop",
    "hidden_dropout",
    "router_dropout",
    "initializer_range",
    "initializer_factor",
    "router_aux_loss_coef",
    "router_z_loss_coef",
    "aux_loss_alpha",
    "output_router_logits",
    "seq_aux",
    "router_jitter_noise",
    "input_jitter_noise",
    "for_llm_compressor",
    // generation
    "max_length",
    "min_length",
    "max_new_tokens",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "min_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "output_scores",
    "return_dict_in_generate",
    // tokens
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "unk_token_id",
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
};

bool IsInert(std::string_view key) {
  return std::find(std::begin(kInertFields), std::end(kInertFields), key) != std::end(kInertFields);
}

// Returns a number or its spelling of infinity ({"__float__": "Infinity"}); NaN for anything else.
double NumberOf(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_object() || value.size() != 1) return NAN;
  const auto word = value.find("__float__");
  if (word == value.end()) return NAN;
  return *word == "Infinity" ? INFINITY : *word == "-Infinity" ? -INFINITY : NAN;
}

bool IsOff(const json& value) { return value.is_null() || (value.is_boolean() && !value.get<bool>()); }

}  // namespace

bool HfFields::Has(std::string_view key) {
  MarkRead(key);
  return object_.Has(key);
}

// Keeps the first error and goes on with a value in range, so that a family's reader needs no check after
// every member.
template <typename T>
T HfFields::Take(const absl::StatusOr<T>& value, T otherwise) {
  if (value.ok()) return *value;
  Keep(value.status());
  return otherwise;
}

uint32_t HfFields::Number(std::string_view key, uint64_t low, uint64_t high) {
  MarkRead(key);
  return static_cast<uint32_t>(Take(object_.Uint(key, low, high), low));
}

uint32_t HfFields::Number(std::string_view key, uint64_t low, uint64_t high, uint64_t fallback) {
  return Has(key) ? Number(key, low, high) : static_cast<uint32_t>(fallback);
}

double HfFields::Real(std::string_view key, double low, double high) {
  MarkRead(key);
  const json* value = object_.Find(key);
  if (value != nullptr && std::isinf(NumberOf(*value))) {
    const double number = NumberOf(*value);
    if (number >= low && number <= high) return number;
  }
  return Take(object_.Double(key, low, high), low);
}

double HfFields::Real(std::string_view key, double low, double high, double fallback) {
  return Has(key) ? Real(key, low, high) : fallback;
}

bool HfFields::Flag(std::string_view key, bool fallback) {
  MarkRead(key);
  return Take(object_.BoolOr(key, fallback), fallback);
}

std::string HfFields::Word(std::string_view key, const std::string& fallback) {
  MarkRead(key);
  return Take(object_.StringOr(key, fallback), fallback);
}

template <typename T, typename Read>
std::vector<T> HfFields::List(std::string_view key, const char* of, const std::string& expected,
                              const Read& read) {
  std::vector<T> values;
  if (!Has(key)) return values;
  const json& list = *object_.Find(key);
  if (!list.is_array() || list.size() > kMaxListed) {
    Fail(key, absl::StrCat("is no list of ", of));
    return values;
  }
  for (const json& entry : list) {
    T value{};
    if (!read(entry, &value)) {
      Fail(key, absl::StrCat("holds ", JsonExcerpt(entry), expected));
      return values;
    }
    values.push_back(std::move(value));
  }
  return values;
}

std::vector<uint32_t> HfFields::Numbers(std::string_view key, uint64_t high) {
  return List<uint32_t>(key, "numbers", absl::StrCat("; whole numbers up to ", high, " are expected"),
                        [high](const json& entry, uint32_t* value) {
                          if (!entry.is_number_unsigned() || entry.get<uint64_t>() > high) return false;
                          *value = static_cast<uint32_t>(entry.get<uint64_t>());
                          return true;
                        });
}

std::vector<double> HfFields::Reals(std::string_view key, double low, double high) {
  return List<double>(key, "numbers", absl::StrCat("; numbers from ", low, " to ", high, " are expected"),
                      [low, high](const json& entry, double* value) {
                        *value = NumberOf(entry);
                        return *value >= low && *value <= high;
                      });
}

std::vector<double> HfFields::RealsOrNull(std::string_view key, double low, double high) {
  return List<double>(key, "numbers",
                      absl::StrCat("; null or numbers from ", low, " to ", high, " are expected"),
                      [low, high](const json& entry, double* value) {
                        *value = entry.is_null() ? 0 : NumberOf(entry);
                        return *value >= low && *value <= high;
                      });
}

std::vector<bool> HfFields::Flags(std::string_view key) {
  return List<bool>(key, "flags", ", which is neither true nor false", [](const json& entry, auto* value) {
    if (!entry.is_boolean()) return false;
    *value = entry.get<bool>();
    return true;
  });
}

std::vector<std::string> HfFields::Words(std::string_view key) {
  return List<std::string>(key, "words", ", which is no word", [](const json& entry, std::string* value) {
    if (!entry.is_string()) return false;
    *value = entry.get<std::string>();
    return true;
  });
}

std::vector<std::string> HfFields::Keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.value().items()) keys.push_back(key);
  return keys;
}

void HfFields::RequireOff(std::string_view key) {
  if (Has(key) && !IsOff(*object_.Find(key))) Refuse(key);
}

void HfFields::RequireWord(std::string_view key, const std::string& value) {
  if (Word(key, value) != value) Refuse(key);
}

void HfFields::RequireNumber(std::string_view key, double value) {
  if (Real(key, -1e30, 1e30, value) != value) Refuse(key);
}

void HfFields::RequireFlag(std::string_view key, bool value) {
  if (Flag(key, value) != value) Refuse(key);
}

void HfFields::Refuse(std::string_view key) {
  const json* value = object_.Find(key);
  Refuse(key, value == nullptr ? "(absent)" : JsonExcerpt(*value));
}

void HfFields::Refuse(std::string_view key, const std::string& what) {
  Keep(absl::UnimplementedError(
      absl::StrCat(object_.subject(), ": ", std::string(key), " ", what, " is not supported")));
}

// An unread member could change the computation, and ignoring it would silently give wrong results. Only
// members that are off or known to be inert may remain.
absl::Status HfFields::Finish() const {
  RETURN_IF_ERROR(status_);
  for (const auto& [key, value] : object_.value().items()) {
    if (IsOff(value) || IsInert(key) ||
        std::find(read_keys_.begin(), read_keys_.end(), key) != read_keys_.end()) {
      continue;
    }
    return absl::UnimplementedError(absl::StrCat(object_.subject(), ": ", key.substr(0, 60), " ",
                                                 JsonExcerpt(value),
                                                 " is not supported: the member is not known"));
  }
  return absl::OkStatus();
}

}  // namespace sluice
