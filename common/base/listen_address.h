// ListenAddress: an address that a daemon listens on, as its options name it.
//
// Thread safety: a plain value and pure functions, safe to use from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

struct ListenAddress {
  enum class Kind : uint8_t { kUnix, kTcp };
  Kind kind = Kind::kUnix;
  std::string path;   // kUnix: absolute
  std::string host;   // kTcp: a numeric address without brackets
  uint16_t port = 0;  // kTcp; 0: any free port
  bool operator==(const ListenAddress&) const = default;

  // "unix:/path", "127.0.0.1:4000", "[::1]:4000": the form that a gRPC client connects to.
  std::string ToString() const;
  // True if only this machine can reach it.
  bool IsLocal() const;
};

// The one rule for a socket's path: a relative path is resolved against the current working directory.
// Returned unchanged if that folder is gone.
std::string AbsoluteSocketPath(const std::string& path);

// Accepts the forms of ToString(), "unix:///path", "unix:path" and "localhost:4000". INVALID_ARGUMENT quoting
// `text`: another form, a path that is too long, a host by name, a port above 65535.
absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text);

}  // namespace sluice
