#include "pack/synth/synth_tokenizer.h"

#include "common/strict_json.h"

namespace sluice {
namespace {

using nlohmann::json;

// GPT-2's printable stand-in for a byte, in UTF-8: printable Latin-1 stands for itself, the others are
// U+0100 and up in order.
std::string ByteSymbol(int byte) {
  const auto printable = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  int code_point = byte;
  if (!printable(byte)) {
    code_point = 0x100;
    for (int b = 0; b < byte; ++b) code_point += printable(b) ? 0 : 1;
  }
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3f))};
}

json SpecialToken(int32_t id, const char* content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

// Bytes as tokens and no merges: any text has a length and comes back unchanged, which suffices for a random
// model.
std::map<std::string, std::string> SynthTokenizerFiles() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[ByteSymbol(byte)] = byte;
  vocab["<s>"] = kSynthBosId;
  vocab["</s>"] = kSynthEosId;
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const json tokenizer = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", {SpecialToken(kSynthBosId, "<s>"), SpecialToken(kSynthEosId, "</s>")}},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor", nullptr},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"vocab", std::move(vocab)},
        {"merges", json::array()}}}};
  const json config = {{"bos_token", "<s>"},
                       {"eos_token", "</s>"},
                       {"add_bos_token", false},
                       {"add_eos_token", false},
                       {"clean_up_tokenization_spaces", false},
                       {"tokenizer_class", "PreTrainedTokenizerFast"}};
  return {{"tokenizer.json", tokenizer.dump(1)}, {"tokenizer_config.json", config.dump(1)}};
}

}  // namespace sluice
