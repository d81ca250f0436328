#include "common/base/version.h"

namespace sluice {

const char* Version() { return SLUICE_VERSION; }

}  // namespace sluice
