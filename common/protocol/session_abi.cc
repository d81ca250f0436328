#include "common/protocol/session_abi.h"

namespace sluice {

// Returns the first difference only: both sides must come from one build of the protocol.
const char* AbiMismatch(const AbiSignature& other) {
  const AbiSignature own;
  if (other.version != own.version) return "version";
  if (other.residency_header != own.residency_header) return "residency_header";
  if (other.residency_entry != own.residency_entry) return "residency_entry";
  if (other.pins_header != own.pins_header) return "pins_header";
  if (other.pin_entry != own.pin_entry) return "pin_entry";
  if (other.control_header != own.control_header) return "control_header";
  if (other.control_cursors != own.control_cursors) return "control_cursors";
  if (other.submission_entry != own.submission_entry) return "submission_entry";
  if (other.completion_entry != own.completion_entry) return "completion_entry";
  if (other.side_message != own.side_message) return "side_message";
  return nullptr;
}

}  // namespace sluice
