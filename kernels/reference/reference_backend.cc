#include "kernels/reference/reference_backend.h"

#include <memory>

namespace sluice {

absl::StatusOr<std::unique_ptr<Backend>> CreateReferenceBackend(const BackendLimits& limits) {
  return std::make_unique<ReferenceBackend>(limits);
}

}  // namespace sluice
