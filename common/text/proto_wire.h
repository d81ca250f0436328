// ProtoReader: iterates over the fields of one protobuf message in its wire form, without generated code.
//
// Thread safety: thread-compatible; a reader is used by one thread at a time.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice {

struct ProtoField {
  uint32_t number = 0;
  uint64_t value = 0;      // varint, or the bits of a fixed32 or fixed64
  std::string_view bytes;  // length-delimited field; a view into the message
  enum class Kind { kVarint, kFixed, kBytes } kind = Kind::kVarint;

  float AsFloat() const;
};

class ProtoReader {
 public:
  // REQUIRES: `message` outlives the reader and the fields.
  explicit ProtoReader(std::string_view message) : message_(message) {}

  bool AtEnd() const { return position_ == message_.size(); }

  // Returns the next field. InvalidArgument, naming the offset, if the message is truncated or ill-formed.
  absl::StatusOr<ProtoField> Next();

 private:
  absl::StatusOr<uint64_t> Varint();
  absl::StatusOr<uint64_t> Fixed(size_t size);

  std::string_view message_;
  size_t position_ = 0;
};

}  // namespace sluice
