// Stop strings in a text stream: holds back text that may still become a stop string, so that no part of one
// is ever sent.
//
// The text is seen as a stream of bytes: the stop string that is complete first ends it (of several complete
// at the same byte the longest), however the text is cut into pieces.
//
// Thread safety: thread-compatible; one matcher belongs to one stream.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::inferd {

class StopMatcher {
 public:
  // `stops`: non-empty strings. `include_stop`: the stop string itself is sent.
  StopMatcher(std::vector<std::string> stops, bool include_stop);

  // Adds the next piece and appends to `*out` the text that can be sent now. True: a stop string is complete;
  // nothing more may be pushed.
  bool Push(std::string_view piece, std::string* out);

  // Ends a stream without a stop: appends the held-back text.
  void Flush(std::string* out);

  // Index of the stop string that ended the stream, -1 before.
  int matched() const { return matched_; }
  const std::string& stop(int index) const { return patterns_[index].text; }

 private:
  struct Pattern {
    std::string text;
    std::vector<uint32_t> fallback;  // by length: the longest proper border of the first `length` bytes
    uint32_t state = 0;              // the longest prefix of `text` that the stream ends in
  };

  std::vector<Pattern> patterns_;
  const bool include_stop_;
  std::string held_;  // the stream's end that is a prefix of a stop string
  int matched_ = -1;
};

}  // namespace sluice::inferd
