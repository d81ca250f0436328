#include "inferd/schedule/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace sluice::inferd {
namespace {

// The failure function of Knuth, Morris and Pratt: border[n] is the length of the longest proper prefix of
// the first n bytes that is also their end. With it every byte is processed once, also in repetitive texts.
std::vector<uint32_t> Borders(const std::string& text) {
  std::vector<uint32_t> border(text.size() + 1, 0);
  for (size_t length = 2; length <= text.size(); ++length) {
    uint32_t k = border[length - 1];
    while (k > 0 && text[k] != text[length - 1]) {
      k = border[k];
    }
    border[length] = text[k] == text[length - 1] ? k + 1 : 0;
  }
  return border;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop) : include_stop_(include_stop) {
  size_t longest = 0;
  for (std::string& stop : stops) {
    longest = std::max(longest, stop.size());
    Pattern pattern;
    pattern.fallback = Borders(stop);
    pattern.text = std::move(stop);
    patterns_.push_back(std::move(pattern));
  }
  held_.reserve(longest);
}

bool StopMatcher::Push(std::string_view piece, std::string* out) {
  for (const char byte : piece) {
    uint32_t longest = 0;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& pattern = patterns_[i];
      while (pattern.state > 0 && pattern.text[pattern.state] != byte) {
        pattern.state = pattern.fallback[pattern.state];
      }
      pattern.state += pattern.text[pattern.state] == byte ? 1 : 0;
      longest = std::max(longest, pattern.state);
      // If several stop strings end at this byte the longest counts, so that none of its bytes are sent.
      const bool complete = pattern.state == pattern.text.size();
      if (complete && (matched_ < 0 || pattern.text.size() > patterns_[matched_].text.size())) {
        matched_ = static_cast<int>(i);
      }
    }
    held_.push_back(byte);
    if (matched_ >= 0) {
      const size_t stop_size = patterns_[matched_].text.size();
      out->append(held_, 0, held_.size() - (include_stop_ ? 0 : stop_size));
      held_.clear();
      return true;
    }
    // Only bytes that may still begin a stop string are held back.
    out->append(held_, 0, held_.size() - longest);
    held_.erase(0, held_.size() - longest);
  }
  return false;
}

void StopMatcher::Flush(std::string* out) {
  out->append(held_);
  held_.clear();
}

}  // namespace sluice::inferd
