// Decoder: tokens back to text, as a whole or token by token.
//
// Thread safety: a Decoder is immutable. A DecodeRun belongs to one text and is used by one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/stages/tokenizer_spec.h"

namespace sluice {

class Decoder {
 public:
  // The steps in order; nullopt joins the tokens with spaces. Unimplemented for steps whose result depends
  // on where tokens end in ways that a stream cannot follow, by name.
  static absl::StatusOr<std::unique_ptr<const Decoder>> Create(
      const std::optional<std::vector<DecoderSpec>>& specs);

  // The bytes that `token` (well-formed UTF-8) adds to a text that has begun and goes on.
  std::string BytesOf(std::string_view token) const;

 private:
  friend class DecodeRun;
  struct JoinWithSpaces {};
  struct Step {
    std::variant<DecoderSpec, JoinWithSpaces> kind;
    // The steps before have fused the tokens: this one sees one text, not tokens.
    bool fused = false;
  };
  std::vector<Step> steps_;
};

// One text being decoded. The output is well-formed UTF-8 after every call.
class DecodeRun {
 public:
  // `eager`: byte tokens give out each character once it is complete. Otherwise a run of byte tokens waits
  // for its end and, if ill-formed anywhere, becomes U+FFFD for each byte, as in Hugging Face `tokenizers`.
  // `decoder` must outlive the run.
  DecodeRun(const Decoder& decoder, bool eager);

  // Appends to *out what `token` (well-formed UTF-8) completes.
  void Push(std::string_view token, std::string* out);

  // Appends what is left, unfinished characters as U+FFFD. The run is then as new.
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
