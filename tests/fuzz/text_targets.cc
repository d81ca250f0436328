#include "tests/fuzz/text_targets.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "common/base/utf8.h"
#include "common/text/chat_template.h"
#include "common/text/regex.h"
#include "common/text/tokenizer.h"

namespace sluice {
namespace {

using fuzz::ReadSeed;
using fuzz::Require;
using fuzz::Text;

constexpr char kTextData[] = "tests/common/text/data/";
// Characters of several lengths, a special token, byte tokens, white space and contractions.
constexpr std::string_view kSampleText =
    "Hello  w\xC3\xB6rld <s></s>\n\t123 \xE4\xB8\xAD\xE6\x96\x87 don't \xF0\x9F\x98\x80<0x0A>";

// The vocabulary is most of a real file: in a file of components alone the mutations hit these.
constexpr std::string_view kComponents =
    R"({"version":"1.0","added_tokens":[{"id":6,"content":"<s>","single_word":true,"lstrip":true,"rstrip":true,)"
    R"("normalized":true,"special":true}],"normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},)"
    R"({"type":"Replace","pattern":{"Regex":"\\s+(?!\\S)|[\\p{L}&&[^a-c]]{1,3}+"},"content":"b"},{"type":"Strip",)"
    R"("strip_left":true,"strip_right":true}]},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split",)"
    R"("pattern":{"Regex":"(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|\\s+"},"behavior":"MergedWithNext",)"
    R"("invert":false},{"type":"Digits","individual_digits":true},{"type":"Metaspace","replacement":"_",)"
    R"("prepend_scheme":"first","split":true},{"type":"ByteLevel","add_prefix_space":true,"use_regex":true}]},)"
    R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],)"
    R"("special_tokens":{"<s>":{"id":"<s>","ids":[6]}}},"decoder":{"type":"Sequence","decoders":[{"type":"Replace",)"
    R"("pattern":{"String":"_"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ",)"
    R"("start":1,"stop":1}]},"model":{"type":"BPE","dropout":null,"unk_token":"a","fuse_unk":true,)"
    R"("byte_fallback":true,"ignore_merges":true,"vocab":{"a":0,"b":1,"ab":2,"<0x41>":3,"_":4,"l":5},)"
    R"("merges":["a b"]}})";

constexpr char kConversation[] = R"({
  "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "<|im_end|> é \n"},
    {"role": "assistant", "content": "", "reasoning_content": "r",
     "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]},
    {"role": "tool", "name": "f", "tool_call_id": "abcdefghi", "content": "1"}],
  "tools": [{"type": "function", "function": {"name": "f", "description": "d",
    "parameters": {"type": "object", "properties": {"a": {"type": "array"}}}}}], "enable_thinking": true})";

constexpr char kConversationTemplate[] =
    "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content | trim }}{% else %}{% for p in m.content %}{{ p.text }}{% "
    "endfor %}"
    "{% endif %}{% for c in m.tool_calls or [] %}{{ c.function.name ~ (c.function.arguments | tojson) }}{% "
    "endfor %}"
    "{{ m.reasoning_content or '' }}<|im_end|>\n{% endfor %}{% for k, v in (extra or {}) | dictsort %}{{ k ~ "
    "v }}"
    "{% endfor %}";

ChatRenderOptions SmallLimits() {
  ChatRenderOptions options;
  options.limits.steps = 20'000;
  options.limits.output_bytes = 1 << 20;
  return options;
}

// Loads the files and uses the tokenizer.
bool LoadsAndWorks(const TokenizerFiles& files) {
  const auto tokenizer = Tokenizer::LoadFromFiles(files);
  if (!tokenizer.ok()) {
    Require(!tokenizer.status().message().empty(), "a refused tokenizer has a reason");
    return false;
  }
  const auto ids = (*tokenizer)->Encode(kSampleText);
  if (!ids.ok()) return true;
  const auto decoded = (*tokenizer)->Decode(*ids, true);
  Require(decoded.ok() && IsWellFormedUtf8(*decoded), "own ids decode to UTF-8");
  StreamDecoder stream(**tokenizer, false);
  for (int32_t id = -1; id < std::min((*tokenizer)->vocab_size(), 300); ++id) {
    Require(IsWellFormedUtf8(stream.Push(id)), "a stream is UTF-8");
  }
  Require(IsWellFormedUtf8(stream.Flush()), "a stream's end is UTF-8");
  return true;
}

bool Renders(const ChatTemplate& made, const std::string& conversation) {
  const ChatRenderOptions options = SmallLimits();
  const auto chat = made.Render(conversation, options);
  if (!chat.ok()) return false;
  Require(chat->text.size() == chat->marks.size(), "a mark for each byte");
  Require(chat->text.size() <= options.limits.output_bytes, "output within its limit");
  return true;
}

std::vector<std::string> SeedFile(const std::string& name) { return {ReadSeed(kTextData + name)}; }

std::vector<std::string> TemplateSeeds() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(kTextData) + "chat/templates")) {
    paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const std::string& path : paths) seeds.push_back(ReadSeed(path));
  // Some templates refuse this conversation by raising an error.
  std::erase_if(seeds, [](const std::string& seed) {
    return !FuzzChatTemplate(reinterpret_cast<const uint8_t*>(seed.data()), seed.size());
  });
  return seeds;
}

}  // namespace

bool FuzzTokenizerJson(const uint8_t* data, size_t size) {
  return LoadsAndWorks({{"tokenizer.json", std::string(Text(data, size))}});
}

bool FuzzTokenizerModel(const uint8_t* data, size_t size) {
  return LoadsAndWorks({{"tokenizer.model", std::string(Text(data, size))}});
}

bool FuzzVocabAndMerges(const uint8_t* data, size_t size) {
  const std::string_view all = Text(data, size);
  const size_t zero = all.find('\0');
  if (zero == std::string_view::npos) return false;
  static const TokenizerFiles* const others = [] {
    auto* files = new TokenizerFiles(*ReadTokenizerFiles(std::string(kTextData) + "bytebpe_gpt2"));
    files->erase("tokenizer.json");
    return files;
  }();
  TokenizerFiles files = *others;
  files["vocab.json"] = std::string(all.substr(0, zero));
  files["merges.txt"] = std::string(all.substr(zero + 1));
  return LoadsAndWorks(files);
}

bool FuzzTokenizerConfig(const uint8_t* data, size_t size) {
  return LoadsAndWorks({{"tokenizer.json", std::string(kComponents)},
                        {"tokenizer_config.json", std::string(Text(data, size))}});
}

bool FuzzTokenizerRegex(const uint8_t* data, size_t size) {
  const auto regex = Regex::Compile(std::string(Text(data, size)));
  if (!regex.ok()) return false;
  RegexScratch scratch;
  std::vector<ByteRange> matches;
  const absl::Status found = (*regex)->FindAll(kSampleText, &scratch, &matches);
  if (!found.ok()) {
    Require(absl::IsResourceExhausted(found), "a search fails by its limits alone");
    return false;
  }
  size_t end = 0;
  for (const ByteRange& match : matches) {
    Require(match.begin >= end && match.begin <= match.end && match.end <= kSampleText.size(),
            "matches are apart and within the text");
    end = match.end;
  }
  return true;
}

bool FuzzChatTemplate(const uint8_t* data, size_t size) {
  const auto made =
      ChatTemplate::Create(std::string(Text(data, size)), {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  return made.ok() && Renders(**made, kConversation);
}

bool FuzzConversation(const uint8_t* data, size_t size) {
  static const ChatTemplate* const made = ChatTemplate::Create(kConversationTemplate, {})->release();
  return Renders(*made, std::string(Text(data, size)));
}

std::vector<FuzzTarget> TextTargets() {
  return {
      {"tokenizer_json", FuzzTokenizerJson, [] { return std::vector<std::string>{std::string(kComponents)}; },
       4000},
      {"tokenizer_model", FuzzTokenizerModel, [] { return SeedFile("spm2048/tokenizer.model"); }, 1500},
      {"vocab_and_merges", FuzzVocabAndMerges,
       [] {
         return std::vector<std::string>{ReadSeed(std::string(kTextData) + "bytebpe_gpt2/vocab.json") +
                                         std::string(1, '\0') +
                                         ReadSeed(std::string(kTextData) + "bytebpe_gpt2/merges.txt")};
       },
       200},
      {"tokenizer_config", FuzzTokenizerConfig,
       [] { return SeedFile("bytebpe_qwen2/tokenizer_config.json"); }, 2000},
      {"tokenizer_regex", FuzzTokenizerRegex,
       [] {
         return std::vector<std::string>{
             R"((?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s*[\r\n]+|\s+(?!\S)|\s+)",
             R"([\p{L}&&[^a-c]]{1,3}+|\h?\u0041|(?=x)[^\s\d_]+?)"};
       },
       4000},
      {"chat_template", FuzzChatTemplate, TemplateSeeds, 2000},
      {"conversation", FuzzConversation, [] { return std::vector<std::string>{kConversation}; }, 4000},
  };
}

}  // namespace sluice
