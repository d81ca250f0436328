#include "common/base/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/unix_listener.h"

namespace sluice {
namespace {

absl::StatusOr<ListenAddress> ParseUnix(const std::string& text, std::string path) {
  // unix:///run/x, as gRPC writes it, is unix:/run/x.
  if (absl::StartsWith(path, "///")) {
    path = path.substr(2);
  }
  if (path.empty() || absl::StartsWith(path, "//")) {
    return absl::InvalidArgumentError(absl::StrCat("address ", text, ": expected unix:PATH"));
  }
  path = AbsoluteSocketPath(path);
  if (path[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("address ", text, ": the working directory, where it lies, cannot be found"));
  }
  if (path.size() > kMaxUnixPath) {
    return absl::InvalidArgumentError(absl::StrCat("address ", text, ": the socket's path has ", path.size(),
                                                   " bytes, unix sockets take at most ", kMaxUnixPath));
  }
  ListenAddress address;
  address.path = std::move(path);
  return address;
}

bool IsIpv4(const std::string& host) {
  in_addr parsed;
  return inet_pton(AF_INET, host.c_str(), &parsed) == 1;
}

bool IsIpv6(const std::string& host) {
  in6_addr parsed;
  return inet_pton(AF_INET6, host.c_str(), &parsed) == 1;
}

}  // namespace

std::string AbsoluteSocketPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

std::string ListenAddress::ToString() const {
  if (kind == Kind::kUnix) {
    return absl::StrCat("unix:", path);
  }
  return IsIpv6(host) ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool ListenAddress::IsLocal() const {
  return kind == Kind::kUnix || host == "::1" || absl::StartsWith(host, "127.");
}

// Names are not resolved, except localhost: a listener's address must not depend on a name server, nor change
// between two starts.
absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text) {
  if (absl::StartsWith(text, "unix:")) {
    return ParseUnix(text, text.substr(5));
  }
  // The last colon: those of an IPv6 address come before it.
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || colon + 1 == text.size() || !absl::ascii_isdigit(text[colon + 1]) ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("address ", text, ": expected unix:PATH or host:port with a port up to 65535"));
  }
  ListenAddress address;
  address.kind = ListenAddress::Kind::kTcp;
  address.port = static_cast<uint16_t>(port);
  address.host = text.substr(0, colon);
  if (address.host == "localhost") {
    address.host = "127.0.0.1";
  }
  const bool bracketed = address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']';
  if (bracketed) {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  if (bracketed ? !IsIpv6(address.host) : !IsIpv4(address.host)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "address ", text, ": the host must be a number such as 127.0.0.1 or [::1], or localhost"));
  }
  return address;
}

}  // namespace sluice
