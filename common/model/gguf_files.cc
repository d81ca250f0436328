#include "common/model/gguf_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/base/utf8.h"

namespace sluice {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxKeys = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxName = 1 << 10;             // bytes of a key's or tensor's name
constexpr uint32_t kMaxDepth = 4;                  // of lists in lists
constexpr uint64_t kMaxElements = 1 << 22;         // of one list; vocabularies are far smaller
constexpr uint64_t kMaxValueBytes = 512ull << 20;  // of all values together
constexpr uint64_t kBufferBytes = 64 << 10;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr char kAlignmentKey[] = "general.alignment";

// Value types by their numbers in files.
enum ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kText = 8,
  kList = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12
};

// Returns the minimum bytes of one element; for a string those of its length.
uint64_t LeastBytes(uint32_t type) {
  static constexpr uint64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};
  return type < std::size(kBytes) ? kBytes[type] : 0;
}

// Makes a name from the file bounded and printable for error messages.
std::string KeyExcerpt(std::string_view name) {
  std::string shown(name.substr(0, 100));
  for (char& c : shown) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return shown;
}

// Cursor: reads forward through the file, one buffer at a time.
class Cursor {
 public:
  Cursor(uint64_t file_bytes, const GgufRead& read, const std::string& subject)
      : file_bytes_(file_bytes), read_(read), subject_(subject) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return file_bytes_ - position_; }

  absl::Status Bytes(uint64_t count, void* out) {
    if (count > left()) return TooShort(count);
    auto* to = static_cast<char*>(out);
    while (count > 0) {
      if (position_ < start_ || position_ >= start_ + buffer_.size()) RETURN_IF_ERROR(Fill());
      const uint64_t at = position_ - start_;
      const uint64_t part = std::min<uint64_t>(count, buffer_.size() - at);
      std::memcpy(to, buffer_.data() + at, part);
      to += part;
      count -= part;
      position_ += part;
    }
    return absl::OkStatus();
  }

  absl::Status Skip(uint64_t count) {
    if (count > left()) return TooShort(count);
    position_ += count;
    return absl::OkStatus();
  }

  template <typename T>
  absl::StatusOr<T> Number() {
    T value{};
    RETURN_IF_ERROR(Bytes(sizeof(value), &value));
    return value;
  }

  // Reads a u64 length and that many bytes, at most `most`.
  absl::StatusOr<std::string> Text(uint64_t most) {
    ASSIGN_OR_RETURN(const uint64_t length, Number<uint64_t>());
    if (length > std::min(most, left())) {
      return absl::InvalidArgumentError(absl::StrCat(subject_, ": a text of ", length, " bytes at byte ",
                                                     position_, "; at most ", std::min(most, left()),
                                                     " can be there"));
    }
    std::string text(length, '\0');
    RETURN_IF_ERROR(Bytes(length, text.data()));
    return text;
  }

 private:
  absl::Status TooShort(uint64_t count) const {
    return absl::InvalidArgumentError(absl::StrCat(subject_, ": ends at byte ", file_bytes_, ", within ",
                                                   count, " bytes of the head from byte ", position_, " on"));
  }

  absl::Status Fill() {
    start_ = position_;
    buffer_.resize(std::min(kBufferBytes, file_bytes_ - start_));
    return read_(start_, absl::MakeSpan(buffer_));
  }

  const uint64_t file_bytes_;
  const GgufRead& read_;
  const std::string& subject_;
  uint64_t position_ = 0;
  uint64_t start_ = 0;
  std::vector<std::byte> buffer_;
};

class HeaderParser {
 public:
  HeaderParser(uint64_t file_bytes, const GgufRead& read, const std::string& subject)
      : subject_(subject), file_bytes_(file_bytes), cursor_(file_bytes, read, subject) {
    header_.keys = GgufKeys(subject);
  }

  absl::StatusOr<GgufHeader> Parse() {
    RETURN_IF_ERROR(ParseStart());
    for (uint64_t i = 0; i < key_count_; ++i) RETURN_IF_ERROR(ParseKey());
    RETURN_IF_ERROR(FindAlignment());
    for (uint64_t i = 0; i < tensor_count_; ++i) RETURN_IF_ERROR(ParseTensor());
    RETURN_IF_ERROR(PlaceTensors());
    return std::move(header_);
  }

 private:
  absl::Status Bad(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(subject_, ": ", what));
  }

  absl::Status ParseStart() {
    if (file_bytes_ < 24) return Bad(absl::StrCat(file_bytes_, " bytes are no GGUF file"));
    ASSIGN_OR_RETURN(const uint32_t magic, cursor_.Number<uint32_t>());
    if (magic != kMagic) return Bad("does not begin as a GGUF file");
    ASSIGN_OR_RETURN(const uint32_t version, cursor_.Number<uint32_t>());
    if (version == 2u << 24 || version == 3u << 24) {
      return absl::UnimplementedError(absl::StrCat(subject_, ": big-endian GGUF is not supported"));
    }
    if (version != 2 && version != 3) {
      return absl::UnimplementedError(
          absl::StrCat(subject_, ": GGUF version ", version, " is not supported (2 and 3 are)"));
    }
    ASSIGN_OR_RETURN(tensor_count_, cursor_.Number<uint64_t>());
    ASSIGN_OR_RETURN(key_count_, cursor_.Number<uint64_t>());
    // A tensor info has at least 8 + 4 + 8 + 4 + 8 bytes, a key 8 + 4 + 1.
    if (tensor_count_ > std::min(kMaxTensors, cursor_.left() / 32) ||
        key_count_ > std::min(kMaxKeys, cursor_.left() / 13)) {
      return Bad(
          absl::StrCat(tensor_count_, " tensors and ", key_count_, " keys in ", file_bytes_, " bytes"));
    }
    return absl::OkStatus();
  }

  absl::Status ParseKey() {
    ASSIGN_OR_RETURN(const std::string key, cursor_.Text(kMaxName));
    if (key.empty()) return Bad(absl::StrCat("an empty key before byte ", cursor_.position()));
    ASSIGN_OR_RETURN(const uint32_t type, cursor_.Number<uint32_t>());
    if (type == kList) return ParseListKey(key);
    absl::StatusOr<GgufValue> value = ParseValue(type, key);
    if (!value.ok()) return value.status();
    if (key == kAlignmentKey && type != kU32) return Bad(absl::StrCat(kAlignmentKey, " is no 32-bit number"));
    return header_.keys.Add(KeyExcerpt(key), *std::move(value));
  }

  absl::Status Account(uint64_t bytes, const std::string& key) {
    value_bytes_ += bytes;
    if (value_bytes_ <= kMaxValueBytes) return absl::OkStatus();
    return Bad(absl::StrCat("key ", KeyExcerpt(key), ": values of more than ", kMaxValueBytes, " bytes"));
  }

  absl::StatusOr<int64_t> ParseInt(uint32_t type, const std::string& key) {
    const auto widen = [](const auto& number) -> absl::StatusOr<int64_t> {
      if (!number.ok()) return number.status();
      return static_cast<int64_t>(*number);
    };
    switch (type) {
      case kU8:
        return widen(cursor_.Number<uint8_t>());
      case kI8:
        return widen(cursor_.Number<int8_t>());
      case kU16:
        return widen(cursor_.Number<uint16_t>());
      case kI16:
        return widen(cursor_.Number<int16_t>());
      case kU32:
        return widen(cursor_.Number<uint32_t>());
      case kI32:
        return widen(cursor_.Number<int32_t>());
      case kI64:
        return widen(cursor_.Number<int64_t>());
      case kU64: {
        ASSIGN_OR_RETURN(const uint64_t number, cursor_.Number<uint64_t>());
        if (number > static_cast<uint64_t>(INT64_MAX))
          return Bad(absl::StrCat("key ", KeyExcerpt(key), ": ", number));
        return static_cast<int64_t>(number);
      }
      default:
        break;
    }
    ASSIGN_OR_RETURN(const uint8_t boolean, cursor_.Number<uint8_t>());
    if (boolean > 1) return Bad(absl::StrCat("key ", KeyExcerpt(key), ": truth value ", boolean));
    return int64_t{boolean};
  }

  absl::StatusOr<double> ParseReal(uint32_t type) {
    if (type == kF64) return cursor_.Number<double>();
    ASSIGN_OR_RETURN(const float number, cursor_.Number<float>());
    return double{number};
  }

  absl::StatusOr<std::string> ParseText(const std::string& key) {
    ASSIGN_OR_RETURN(std::string text, cursor_.Text(kMaxValueBytes));
    RETURN_IF_ERROR(Account(text.size(), key));
    if (!IsWellFormedUtf8(text))
      return Bad(absl::StrCat("key ", KeyExcerpt(key), ": a text that is not UTF-8"));
    return text;
  }

  absl::StatusOr<GgufValue> ParseValue(uint32_t type, const std::string& key) {
    if (LeastBytes(type) == 0) return Bad(absl::StrCat("key ", KeyExcerpt(key), ": unknown type ", type));
    if (type == kText) {
      ASSIGN_OR_RETURN(std::string text, ParseText(key));
      return GgufValue(std::move(text));
    }
    if (type == kF32 || type == kF64) {
      ASSIGN_OR_RETURN(const double number, ParseReal(type));
      return GgufValue(number);
    }
    ASSIGN_OR_RETURN(const int64_t number, ParseInt(type, key));
    return GgufValue(number);
  }

  struct ListHead {
    uint32_t type = 0;
    uint64_t count = 0;
  };
  absl::StatusOr<ListHead> ParseListHead(const std::string& key) {
    ListHead head;
    ASSIGN_OR_RETURN(head.type, cursor_.Number<uint32_t>());
    ASSIGN_OR_RETURN(head.count, cursor_.Number<uint64_t>());
    const uint64_t least = head.type == kList ? 12 : LeastBytes(head.type);
    if (least == 0) return Bad(absl::StrCat("key ", KeyExcerpt(key), ": a list of type ", head.type));
    if (head.count > std::min(kMaxElements, cursor_.left() / least)) {
      return Bad(absl::StrCat("key ", KeyExcerpt(key), ": a list of ", head.count, " elements of at least ",
                              least, " bytes, with ", cursor_.left(), " left"));
    }
    return head;
  }

  // Skips the elements of a list, which may be lists. No key of a model is a list of lists.
  absl::Status SkipElements(const ListHead& head, uint32_t depth, const std::string& key) {
    if (depth > kMaxDepth) {
      return Bad(absl::StrCat("key ", KeyExcerpt(key), ": lists in lists, more than ", kMaxDepth, " deep"));
    }
    if (head.type != kText && head.type != kList) return cursor_.Skip(head.count * LeastBytes(head.type));
    for (uint64_t i = 0; i < head.count; ++i) {
      if (head.type == kList) {
        ASSIGN_OR_RETURN(const ListHead inner, ParseListHead(key));
        RETURN_IF_ERROR(SkipElements(inner, depth + 1, key));
      } else {
        ASSIGN_OR_RETURN(const uint64_t length, cursor_.Number<uint64_t>());
        RETURN_IF_ERROR(cursor_.Skip(length));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ParseListKey(const std::string& key) {
    ASSIGN_OR_RETURN(const ListHead head, ParseListHead(key));
    if (head.type == kList) return SkipElements(head, 1, key);
    absl::StatusOr<GgufValue> value = ParseElements(head, key);
    if (!value.ok()) return value.status();
    if (key == kAlignmentKey) return Bad(absl::StrCat(kAlignmentKey, " is no 32-bit number"));
    return header_.keys.Add(KeyExcerpt(key), *std::move(value));
  }

  absl::StatusOr<GgufValue> ParseElements(const ListHead& head, const std::string& key) {
    const auto [type, count] = head;
    RETURN_IF_ERROR(Account(count * (type == kText ? sizeof(std::string) : sizeof(int64_t)), key));
    if (type == kText) {
      std::vector<std::string> texts(count);
      for (std::string& text : texts) {
        ASSIGN_OR_RETURN(text, ParseText(key));
      }
      return GgufValue(std::move(texts));
    }
    if (type == kF32 || type == kF64) {
      std::vector<double> numbers(count);
      for (double& number : numbers) {
        ASSIGN_OR_RETURN(number, ParseReal(type));
      }
      return GgufValue(std::move(numbers));
    }
    std::vector<int64_t> numbers(count);
    for (int64_t& number : numbers) {
      ASSIGN_OR_RETURN(number, ParseInt(type, key));
    }
    return GgufValue(std::move(numbers));
  }

  absl::Status FindAlignment() {
    ASSIGN_OR_RETURN(const std::optional<int64_t> value,
                     header_.keys.Int(kAlignmentKey, 1, static_cast<int64_t>(kMaxAlignment)));
    alignment_ = static_cast<uint64_t>(value.value_or(kDefaultAlignment));
    if (!std::has_single_bit(alignment_)) return header_.keys.Error(kAlignmentKey, "is no power of two");
    return absl::OkStatus();
  }

  absl::Status ParseTensor() {
    GgufTensorInfo tensor;
    ASSIGN_OR_RETURN(tensor.name, cursor_.Text(kMaxName));
    const std::string name = absl::StrCat("tensor ", KeyExcerpt(tensor.name));
    if (tensor.name.empty() || tensor.name != KeyExcerpt(tensor.name) || !names_.insert(tensor.name).second) {
      return Bad(absl::StrCat(name, ": its name is empty, unprintable, or another's too"));
    }
    ASSIGN_OR_RETURN(const uint32_t rank, cursor_.Number<uint32_t>());
    if (rank < 1 || rank > 4) return Bad(absl::StrCat(name, ": ", rank, " dimensions; 1 to 4 are expected"));
    uint64_t values = 1;
    for (uint32_t i = 0; i < rank; ++i) {
      ASSIGN_OR_RETURN(const uint64_t dim, cursor_.Number<uint64_t>());
      tensor.dims.push_back(dim);
      // Rows and columns are 32-bit numbers.
      if (dim == 0 || dim > UINT32_MAX || __builtin_mul_overflow(values, dim, &values)) {
        return Bad(absl::StrCat(name, ": dimensions [", absl::StrJoin(tensor.dims, ", "), "]"));
      }
    }
    while (tensor.dims.size() > 1 && tensor.dims.back() == 1) tensor.dims.pop_back();
    ASSIGN_OR_RETURN(const uint32_t type, cursor_.Number<uint32_t>());
    ASSIGN_OR_RETURN(tensor.offset, cursor_.Number<uint64_t>());
    tensor.format = FindGgufFormat(type);
    if (tensor.format == nullptr) {
      return absl::UnimplementedError(absl::StrCat(subject_, ": ", name, ": blocks of ",
                                                   DescribeGgufFormat(type),
                                                   " are not supported; use a file of llama.cpp's types"));
    }
    if (tensor.dims[0] % tensor.format->values != 0) {
      return Bad(absl::StrCat(name, ": rows of ", tensor.dims[0], " values are no whole blocks of ",
                              tensor.format->name));
    }
    if (__builtin_mul_overflow(values / tensor.format->values, uint64_t{tensor.format->bytes},
                               &tensor.bytes)) {
      return Bad(absl::StrCat(name, ": dimensions [", absl::StrJoin(tensor.dims, ", "), "]"));
    }
    header_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  // Tensors may lie in any order and with gaps, but within the file and apart from each other.
  absl::Status PlaceTensors() {
    if (header_.tensors.empty()) return absl::OkStatus();
    const uint64_t mask = alignment_ - 1;
    const uint64_t start = (cursor_.position() + mask) & ~mask;
    if (start > file_bytes_) return Bad(absl::StrCat("ends at byte ", file_bytes_, ", before its data"));
    const uint64_t room = file_bytes_ - start;
    std::vector<const GgufTensorInfo*> by_offset;
    for (const GgufTensorInfo& tensor : header_.tensors) {
      if ((tensor.offset & mask) != 0) {
        return Bad(absl::StrCat("tensor ", tensor.name, " begins at byte ", tensor.offset,
                                " of the data, no multiple of ", alignment_));
      }
      if (tensor.bytes > room || tensor.offset > room - tensor.bytes) {
        return Bad(absl::StrCat("tensor ", tensor.name, ": ", tensor.bytes, " bytes from byte ",
                                tensor.offset, " of the data on, which ends at ", room, ForkNote(tensor)));
      }
      by_offset.push_back(&tensor);
    }
    std::sort(by_offset.begin(), by_offset.end(),
              [](const GgufTensorInfo* a, const GgufTensorInfo* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < by_offset.size(); ++i) {
      const GgufTensorInfo& before = *by_offset[i - 1];
      if (by_offset[i]->offset < before.offset + before.bytes) {
        return Bad(absl::StrCat("tensor ", by_offset[i]->name, " begins at byte ", by_offset[i]->offset,
                                " of the data, before tensor ", before.name, " ends at ",
                                before.offset + before.bytes, ForkNote(before)));
      }
    }
    for (GgufTensorInfo& tensor : header_.tensors) tensor.offset += start;
    return absl::OkStatus();
  }

  // Explains a tensor that is longer than its place: forks gave the ids of these types to smaller blocks.
  static std::string ForkNote(const GgufTensorInfo& tensor) {
    if (tensor.format->id != kGgufQ2_0 && tensor.format->id != kGgufNvfp4) return "";
    return absl::StrCat(
        "; a file whose ", tensor.format->name,
        " blocks have another size was made by an older fork of llama.cpp and cannot be read");
  }

  const std::string& subject_;
  const uint64_t file_bytes_;
  Cursor cursor_;
  GgufHeader header_;
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
  uint64_t value_bytes_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  absl::flat_hash_set<std::string> names_;
};

}  // namespace

absl::StatusOr<GgufHeader> ParseGgufHeader(uint64_t file_bytes, const GgufRead& read,
                                           const std::string& subject) {
  return HeaderParser(file_bytes, read, subject).Parse();
}

// GgufKeys: typed access to the keys of a GGUF file.

absl::Status GgufKeys::Error(const std::string& key, const std::string& what) const {
  return absl::InvalidArgumentError(absl::StrCat(subject_, ": ", key, " ", what));
}

absl::Status GgufKeys::Unsupported(const std::string& key, const std::string& what) const {
  return absl::UnimplementedError(absl::StrCat(subject_, ": ", key, " ", what, " is not supported"));
}

absl::Status GgufKeys::Add(const std::string& key, GgufValue value) {
  if (!values_.emplace(key, std::move(value)).second) return Error(key, "is there twice");
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<const T*> GgufKeys::Get(const std::string& key, const char* what) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return static_cast<const T*>(nullptr);
  const T* const value = std::get_if<T>(&it->second);
  if (value == nullptr) return Error(key, absl::StrCat("is no ", what));
  return value;
}

absl::StatusOr<std::optional<int64_t>> GgufKeys::Int(const std::string& key, int64_t low,
                                                     int64_t high) const {
  ASSIGN_OR_RETURN(const int64_t* value, Get<int64_t>(key, "whole number"));
  if (value == nullptr) return std::optional<int64_t>();
  if (*value < low || *value > high) {
    return Error(key,
                 absl::StrCat("is ", *value, "; a whole number from ", low, " to ", high, " is expected"));
  }
  return std::optional<int64_t>(*value);
}

absl::StatusOr<std::optional<double>> GgufKeys::Real(const std::string& key) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return std::optional<double>();
  if (const auto* whole = std::get_if<int64_t>(&it->second)) {
    return std::optional<double>(static_cast<double>(*whole));
  }
  const auto* value = std::get_if<double>(&it->second);
  if (value == nullptr || !std::isfinite(*value)) return Error(key, "is no finite number");
  return std::optional<double>(*value);
}

absl::StatusOr<std::optional<std::string>> GgufKeys::Text(const std::string& key) const {
  ASSIGN_OR_RETURN(const std::string* value, Get<std::string>(key, "text"));
  return value == nullptr ? std::optional<std::string>() : std::optional<std::string>(*value);
}

absl::StatusOr<const std::vector<int64_t>*> GgufKeys::Ints(const std::string& key) const {
  return Get<std::vector<int64_t>>(key, "list of whole numbers");
}

absl::StatusOr<const std::vector<double>*> GgufKeys::Reals(const std::string& key) const {
  return Get<std::vector<double>>(key, "list of numbers");
}

absl::StatusOr<const std::vector<std::string>*> GgufKeys::Texts(const std::string& key) const {
  return Get<std::vector<std::string>>(key, "list of texts");
}

namespace {

constexpr int64_t kMaxParts = 4096;
// Size limit used when only the head of a file is present.
constexpr uint64_t kAnySize = uint64_t{1} << 50;

// PREFIX-00001-of-00003.gguf
std::string PartSuffix(int64_t number, int64_t count) {
  return absl::StrFormat("-%05d-of-%05d.gguf", number + 1, count);
}

absl::StatusOr<int64_t> NeedInt(const GgufKeys& keys, const std::string& key, int64_t low, int64_t high) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> value, keys.Int(key, low, high));
  if (!value.has_value()) return keys.Error(key, "is missing");
  return *value;
}

}  // namespace

absl::StatusOr<GgufHeader> GgufFiles::AddFile(const std::string& path, bool whole) {
  ASSIGN_OR_RETURN(File file, File::OpenForRead(path));
  ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  const auto read = [&file, size](uint64_t offset, absl::Span<std::byte> bytes) -> absl::Status {
    // With a lone head, the parser's buffer may reach beyond the end of the file.
    const uint64_t there = std::min<uint64_t>(bytes.size(), size - std::min(size, offset));
    std::fill(bytes.begin() + static_cast<ptrdiff_t>(there), bytes.end(), std::byte{0});
    return file.ReadAt(offset, bytes.first(there));
  };
  ASSIGN_OR_RETURN(GgufHeader header, ParseGgufHeader(whole ? size : kAnySize, read, path));
  struct stat info;
  if (fstat(file.fd(), &info) != 0) return ErrnoToStatus(errno, absl::StrCat("stat ", path));
  absl::StrAppend(&fingerprint_, path.substr(path.rfind('/') + 1), " ", size, " ", info.st_mtim.tv_sec, ".",
                  info.st_mtim.tv_nsec, "\n");
  for (GgufTensorInfo& tensor : header.tensors) {
    tensor.file = static_cast<uint32_t>(files_.size());
    tensors_.push_back(std::move(tensor));
  }
  files_.push_back(std::move(file));
  return header;
}

absl::Status GgufFiles::AddParts(const std::string& path) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> count, keys_.Int("split.count", 0, kMaxParts));
  if (count.value_or(0) <= 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t first, NeedInt(keys_, "split.no", 0, kMaxParts));
  if (first != 0) {
    return keys_.Error("split.no", absl::StrCat("is ", first, "; open the model by its first file, ...",
                                                PartSuffix(0, *count)));
  }
  if (!absl::EndsWith(path, PartSuffix(0, *count))) {
    return keys_.Error("split.count", absl::StrCat("is ", *count, ", so the file's name must end in ",
                                                   PartSuffix(0, *count)));
  }
  const std::string prefix = path.substr(0, path.size() - PartSuffix(0, *count).size());
  for (int64_t number = 1; number < *count; ++number) {
    ASSIGN_OR_RETURN(const GgufHeader part, AddFile(prefix + PartSuffix(number, *count), /*whole=*/true));
    ASSIGN_OR_RETURN(const int64_t own_number, NeedInt(part.keys, "split.no", 0, kMaxParts));
    ASSIGN_OR_RETURN(const int64_t own_count, NeedInt(part.keys, "split.count", 0, kMaxParts));
    if (own_number != number || own_count != *count) {
      return part.keys.Error("split.no", absl::StrCat("and split.count are ", own_number, " and ", own_count,
                                                      ", expected ", number, " and ", *count));
    }
  }
  ASSIGN_OR_RETURN(const int64_t total, NeedInt(keys_, "split.tensors.count", 0, INT32_MAX));
  if (static_cast<uint64_t>(total) != tensors_.size()) {
    return keys_.Error("split.tensors.count",
                       absl::StrCat("is ", total, ", but the files hold ", tensors_.size()));
  }
  return absl::OkStatus();
}

absl::Status GgufFiles::IndexTensors() {
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    if (!by_name_.emplace(tensors_[i].name, i).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(PathOf(tensors_[i]), ": tensor ", tensors_[i].name, " is in another part too"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GgufFiles>> GgufFiles::Open(const std::string& path) {
  auto files = std::unique_ptr<GgufFiles>(new GgufFiles());
  ASSIGN_OR_RETURN(GgufHeader header, files->AddFile(path, /*whole=*/true));
  files->keys_ = std::move(header.keys);
  RETURN_IF_ERROR(files->AddParts(path));
  RETURN_IF_ERROR(files->IndexTensors());
  return files;
}

absl::StatusOr<std::unique_ptr<GgufFiles>> GgufFiles::OpenMetadata(const std::string& path) {
  auto files = std::unique_ptr<GgufFiles>(new GgufFiles());
  ASSIGN_OR_RETURN(GgufHeader header, files->AddFile(path, /*whole=*/false));
  files->keys_ = std::move(header.keys);
  RETURN_IF_ERROR(files->IndexTensors());
  return files;
}

const GgufTensorInfo* GgufFiles::Find(std::string_view name) const {
  const auto it = by_name_.find(absl::string_view(name.data(), name.size()));
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

absl::Status GgufFiles::Read(const GgufTensorInfo& tensor, uint64_t offset,
                             absl::Span<std::byte> bytes) const {
  return files_[tensor.file].ReadAt(tensor.offset + offset, bytes);
}

absl::StatusOr<std::vector<float>> GgufFiles::ReadSmall(const GgufTensorInfo& tensor) const {
  const uint64_t blocks = tensor.bytes / tensor.format->bytes;
  if (blocks > kMaxSmall / tensor.format->values) {
    return absl::InvalidArgumentError(absl::StrCat(PathOf(tensor), ": tensor ", tensor.name, " has ",
                                                   blocks * tensor.format->values, " values, more than ",
                                                   kMaxSmall));
  }
  std::vector<std::byte> raw(tensor.bytes);
  RETURN_IF_ERROR(Read(tensor, 0, absl::MakeSpan(raw)));
  std::vector<float> values(blocks * tensor.format->values);
  for (uint64_t i = 0; i < blocks; ++i) {
    tensor.format->decode(reinterpret_cast<const uint8_t*>(raw.data()) + i * tensor.format->bytes,
                          values.data() + i * tensor.format->values);
  }
  return values;
}

}  // namespace sluice
