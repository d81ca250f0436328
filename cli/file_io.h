// Whole reads and writes at a place in a file.
//
// Thread safety: free functions; several threads may use one descriptor at once.
#ifndef SLUICE_CLI_FILE_IO_H_
#define SLUICE_CLI_FILE_IO_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace sluice::cli {

// Errors name `path`. ReadAt: DataLoss where the file ends early.
absl::Status WriteAt(int fd, uint64_t offset, const void* bytes, size_t count, const std::string& path);
absl::Status ReadAt(int fd, uint64_t offset, void* bytes, size_t count, const std::string& path);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_FILE_IO_H_
