#include "common/text/tokenizer.h"
#include "common/text/tokenizer_impl.h"

namespace sluice {

struct StreamDecoder::State {
  const Tokenizer::Impl* tokenizer;
  bool skip_special;
  DecodeRun run;
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : state_(new State{tokenizer.impl_.get(), skip_special,
                       DecodeRun(*tokenizer.impl_->decoder, /*eager=*/true)}) {}

StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::Push(int32_t id) {
  std::string text;
  if (const auto token = state_->tokenizer->TextOf(id, state_->skip_special); token.has_value()) {
    state_->run.Push(*token, &text);
  }
  return text;
}

std::string StreamDecoder::Flush() {
  std::string text;
  state_->run.Finish(&text);
  return text;
}

}  // namespace sluice
