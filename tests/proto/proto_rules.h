// Rules for the project's protos: buf's STANDARD and COMMENTS lint rules, and the forbidden changes of a
// later version (buf's FILE rules, as far as they apply).
//
// Thread safety: pure functions over their arguments, safe to call from any thread.
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/descriptor.pb.h"

namespace sluice {

// One line for each violation in the files whose path begins with `prefix`: "RULE: element". The set must
// hold its imports and, for the comment rules, source info.
std::vector<std::string> LintBreaches(const google::protobuf::FileDescriptorSet& files,
                                      const std::string& prefix);

// One line for each change from `before` to `after` that breaks clients built against `before`.
std::vector<std::string> BreakingChanges(const google::protobuf::FileDescriptorSet& before,
                                         const google::protobuf::FileDescriptorSet& after);

}  // namespace sluice
