// The user's runtime directory and the sockets in it: where weightd and inferd listen, and where `sluice`
// looks for them, unless told otherwise.
//
// Thread safety: free functions; they read the environment, which nobody changes after main has begun.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace sluice {

// Names within the runtime directory. Some keep a second socket beside their first, with a suffix: the
// longest such name counts against the limit of a socket's path.
inline constexpr char kWeightdSocketName[] = "weightd.sock";
inline constexpr char kInferdSocketName[] = "inferd.sock";
inline constexpr char kInferdAdminSocketName[] = "inferd-admin.sock";

// $SLUICE_RUNTIME_DIR, else $XDG_RUNTIME_DIR/sluice, else /tmp/sluice-UID. Nothing is created.
std::string RuntimeDirPath();

// RuntimeDirPath(), created with mode 0700 if it is not there. PermissionDenied if it is a link, belongs to
// somebody else, or others may write to it; InvalidArgument if socket paths in it would be too long.
absl::StatusOr<std::string> EnsureRuntimeDir();

}  // namespace sluice
