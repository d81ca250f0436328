// The user's runtime directory and its sockets: weightd and inferd listen there, and `sluice` looks there,
// unless options name other paths.
//
// Thread safety: free functions; they read the environment, which is constant after main has begun.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace sluice {

// Names within the runtime directory. Some sockets have a second one beside them, with a suffix: the longest
// such name counts against the limit of a socket's path.
inline constexpr char kWeightdSocketName[] = "weightd.sock";
inline constexpr char kInferdSocketName[] = "inferd.sock";
inline constexpr char kInferdAdminSocketName[] = "inferd-admin.sock";

// $SLUICE_RUNTIME_DIR, else $XDG_RUNTIME_DIR/sluice, else /tmp/sluice-UID. Nothing is created.
std::string RuntimeDirPath();

// RuntimeDirPath(), created with mode 0700 if it is missing. PERMISSION_DENIED if it is a link, belongs to
// another user, or is writable by others; INVALID_ARGUMENT if socket paths in it would be too long.
absl::StatusOr<std::string> EnsureRuntimeDir();

}  // namespace sluice
