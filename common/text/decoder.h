// Decoder: tokens back to text, as a whole or token by token.
//
// Thread safety: a Decoder is immutable. A DecodeRun belongs to one stream and is used by one thread at a
// time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/tokenizer_spec.h"

namespace sluice {

class Decoder {
 public:
  // `steps` in order; nullopt joins the tokens with spaces. UNIMPLEMENTED, by name, for steps that depend on
  // token boundaries in ways that a stream cannot follow.
  static absl::StatusOr<std::unique_ptr<const Decoder>> Create(
      const std::optional<std::vector<DecoderSpec>>& specs);

  // Returns the bytes that `token` (well-formed UTF-8) adds in the middle of a text.
  std::string BytesOf(std::string_view token) const;

 private:
  friend class DecodeRun;
  struct JoinWithSpaces {};
  struct Step {
    std::variant<DecoderSpec, JoinWithSpaces> kind;
    // The previous steps have fused the tokens: this step sees one text, not tokens.
    bool fused = false;
  };
  std::vector<Step> steps_;
};

// DecodeRun: one text being decoded. The output is well-formed UTF-8 after every call.
class DecodeRun {
 public:
  // `eager`: byte tokens emit each character once it is complete. Otherwise a run of byte tokens is held
  // until its end and, if any part is ill-formed, becomes U+FFFD for each byte, as in Hugging Face
  // `tokenizers`. REQUIRES: `decoder` outlives the run.
  DecodeRun(const Decoder& decoder, bool eager);

  // Appends the text that `token` (well-formed UTF-8) completes to *out.
  void Push(std::string_view token, std::string* out);

  // Appends the rest, unfinished characters as U+FFFD. The run can then be reused.
  void Finish(std::string* out);

 private:
  struct State {
    std::string pending;  // bytes of an unfinished character or byte run; characters that may be stripped
    size_t count = 0;     // tokens seen (Metaspace, join); characters stripped at the left (Strip)
    bool begun = false;   // Strip: a character that stays has been seen
  };

  void Feed(size_t index, std::string_view token, std::string* out);
  void FeedByteLevel(size_t index, std::string_view token, std::string* out);
  void FeedByteFallback(size_t index, std::string_view token, std::string* out);
  void FeedStrip(size_t index, const StripDecoder& strip, std::string_view token, std::string* out);
  void FlushByteFallback(size_t index, std::string* out);

  const Decoder* decoder_;
  bool eager_;
  std::vector<State> states_;
};

}  // namespace sluice
