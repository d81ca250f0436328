#include "common/text/proto_wire.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice {

float ProtoField::AsFloat() const { return std::bit_cast<float>(static_cast<uint32_t>(value)); }

// Seven bits per byte, the lowest first; the top bit means that more follow. Ten bytes hold 64 bits, so a
// longer varint is damage.
absl::StatusOr<uint64_t> ProtoReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (AtEnd()) {
      return absl::InvalidArgumentError(absl::StrCat("cut off at byte ", position_));
    }
    const auto byte = static_cast<uint8_t>(message_[position_++]);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) {
      return value;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("varint longer than 10 bytes at byte ", position_));
}

absl::StatusOr<uint64_t> ProtoReader::Fixed(size_t size) {
  if (message_.size() - position_ < size) {
    return absl::InvalidArgumentError(absl::StrCat("cut off at byte ", position_));
  }
  uint64_t value = 0;
  std::memcpy(&value, message_.data() + position_, size);
  position_ += size;
  return value;
}

absl::StatusOr<ProtoField> ProtoReader::Next() {
  ASSIGN_OR_RETURN(const uint64_t tag, Varint());
  ProtoField field;
  if (tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF) {
    return absl::InvalidArgumentError(absl::StrCat("field number ", tag >> 3, " at byte ", position_));
  }
  field.number = static_cast<uint32_t>(tag >> 3);
  // Wire types: 0 varint, 1 and 5 fixed of 8 and 4 bytes, 2 length-delimited. Types 3 and 4, groups, are
  // obsolete and refused.
  switch (tag & 7) {
    case 0: {
      ASSIGN_OR_RETURN(field.value, Varint());
      return field;
    }
    case 1:
    case 5: {
      field.kind = ProtoField::Kind::kFixed;
      ASSIGN_OR_RETURN(field.value, Fixed((tag & 7) == 1 ? 8 : 4));
      return field;
    }
    case 2: {
      ASSIGN_OR_RETURN(const uint64_t size, Varint());
      if (size > message_.size() - position_) {
        return absl::InvalidArgumentError(
            absl::StrCat("field of ", size, " bytes at byte ", position_, " of ", message_.size()));
      }
      field.kind = ProtoField::Kind::kBytes;
      field.bytes = message_.substr(position_, size);
      position_ += size;
      return field;
    }
    default:
      return absl::InvalidArgumentError(absl::StrCat("wire type ", tag & 7, " at byte ", position_));
  }
}

}  // namespace sluice
