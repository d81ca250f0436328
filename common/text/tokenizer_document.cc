#include "common/text/tokenizer_document.h"

#include "absl/strings/str_cat.h"
#include "common/text/stages/vocabulary.h"

namespace sluice {
namespace {

constexpr size_t kMaxDocumentDepth = 64;

// DocumentReader: receives the parser's events; each handler returns false to stop. Vocabulary and merges,
// hundreds of thousands of entries, go straight into vectors: a JSON tree of them would need many times the
// memory and time. The mode tells which of the two, if any, is being read.
class DocumentReader {
 public:
  explicit DocumentReader(TokenizerDocument* document) : document_(*document) {}

  const absl::Status& status() const { return status_; }

  bool null() { return Add(nullptr); }
  bool boolean(bool value) { return Add(value); }
  bool number_integer(int64_t value) { return Add(value); }
  bool number_unsigned(uint64_t value) {
    if (mode_ != Mode::kVocab) {
      return Add(value);
    }
    if (value >= static_cast<uint64_t>(Vocabulary::kMaxIds)) {
      return Fail(absl::StrCat("id of token \"", key_, "\" is ", value, ", not below ", Vocabulary::kMaxIds));
    }
    document_.vocab.emplace_back(std::move(key_), static_cast<int64_t>(value));
    return true;
  }
  bool number_float(double value, const std::string&) { return Add(value); }
  bool binary(Json::binary_t&) { return Fail("binary value"); }

  bool string(std::string& value) {
    if (mode_ == Mode::kMerges) {
      const size_t space = value.find(' ');
      if (space == std::string::npos || value.find(' ', space + 1) != std::string::npos) {
        return Fail(absl::StrCat("merge ", document_.merges.size(), " \"", value, "\" is not two tokens"));
      }
      document_.merges.emplace_back(value.substr(0, space), value.substr(space + 1));
      return true;
    }
    if (mode_ == Mode::kMerge) {
      pair_.push_back(std::move(value));
      return pair_.size() <= 2 || FailMerge();
    }
    return Add(std::move(value));
  }

  bool key(std::string& value) {
    key_ = std::move(value);
    return true;
  }

  bool start_object(size_t) {
    if (InModel() && key_ == "vocab") {
      mode_ = Mode::kVocab;
      document_.has_vocab = true;
      return true;
    }
    return Open(Json::object());
  }

  bool end_object() {
    if (mode_ == Mode::kVocab) {
      mode_ = Mode::kTree;
      return true;
    }
    return Close();
  }

  bool start_array(size_t) {
    if (InModel() && key_ == "merges") {
      mode_ = Mode::kMerges;
      document_.has_merges = true;
      return true;
    }
    if (mode_ == Mode::kMerges) {
      mode_ = Mode::kMerge;
      pair_.clear();
      return true;
    }
    return Open(Json::array());
  }

  bool end_array() {
    if (mode_ == Mode::kMerge) {
      if (pair_.size() != 2) {
        return FailMerge();
      }
      document_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      mode_ = Mode::kMerges;
      return true;
    }
    if (mode_ == Mode::kMerges) {
      mode_ = Mode::kTree;
      return true;
    }
    return Close();
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    return Fail(absl::StrCat("not well-formed JSON at byte ", position));
  }

 private:
  enum class Mode { kTree, kVocab, kMerges, kMerge };

  bool Fail(const std::string& message) {
    status_ = absl::InvalidArgumentError(message);
    return false;
  }
  bool FailMerge() {
    return Fail(absl::StrCat("merge ", document_.merges.size(), " is not a pair of strings"));
  }

  // True directly in the member "model" of the document.
  bool InModel() const {
    return mode_ == Mode::kTree && open_.size() == 2 && open_[1]->is_object() && top_key_ == "model";
  }

  // Returns the position of the next value in the tree; null if there can be none.
  Json* Slot() {
    if (mode_ != Mode::kTree) {
      Fail(mode_ == Mode::kVocab ? absl::StrCat("id of token \"", key_, "\" is not a whole number from 0")
                                 : absl::StrCat("merge ", document_.merges.size(), " is not two strings"));
      return nullptr;
    }
    if (open_.empty()) {
      return &document_.tree;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(nullptr);
      return &parent.back();
    }
    if (open_.size() == 1) {
      top_key_ = key_;
    }
    return &parent[key_];
  }

  template <typename Value>
  bool Add(Value&& value) {
    Json* const slot = Slot();
    if (slot == nullptr) {
      return false;
    }
    *slot = Json(std::forward<Value>(value));
    return true;
  }

  bool Open(Json container) {
    if (open_.size() >= kMaxDocumentDepth) {
      return Fail(absl::StrCat("nested deeper than ", kMaxDocumentDepth));
    }
    Json* const slot = Slot();
    if (slot == nullptr) {
      return false;
    }
    *slot = std::move(container);
    open_.push_back(slot);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  TokenizerDocument& document_;
  absl::Status status_;
  Mode mode_ = Mode::kTree;
  std::vector<Json*> open_;  // containers from the document to the one being filled
  std::string key_;
  std::string top_key_;  // the document's member being filled
  std::vector<std::string> pair_;
};

}  // namespace

absl::StatusOr<TokenizerDocument> ParseTokenizerDocument(const std::string& bytes) {
  TokenizerDocument document;
  DocumentReader reader(&document);
  const bool whole = Json::sax_parse(bytes, &reader);
  if (!whole || !document.tree.is_object()) {
    return reader.status().ok() ? absl::InvalidArgumentError("not a JSON object") : reader.status();
  }
  return document;
}

}  // namespace sluice
