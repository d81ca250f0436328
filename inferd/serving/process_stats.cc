#include "inferd/serving/process_stats.h"

#include <dirent.h>
#include <unistd.h>

#include <cstdio>

namespace sluice::inferd {

uint64_t CountOpenDescriptors() {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) {
    return 0;
  }
  uint64_t count = 0;
  while (const dirent* entry = readdir(directory)) {
    count += entry->d_name[0] != '.' ? 1 : 0;
  }
  closedir(directory);
  // Reading the folder itself uses one descriptor.
  return count - 1;
}

uint64_t ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) {
    return 0;
  }
  unsigned long total = 0;
  unsigned long resident = 0;
  const int got = std::fscanf(file, "%lu %lu", &total, &resident);
  std::fclose(file);
  return got == 2 ? static_cast<uint64_t>(resident) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

ResidentParts ReadResidentParts() {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  ResidentParts parts;
  if (file == nullptr) {
    return parts;
  }
  char line[256];
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    unsigned long kib = 0;
    if (std::sscanf(line, "RssAnon: %lu kB", &kib) == 1) {
      parts.own = uint64_t{kib} << 10;
    } else if (std::sscanf(line, "RssShmem: %lu kB", &kib) == 1) {
      parts.shared = uint64_t{kib} << 10;
    }
  }
  std::fclose(file);
  return parts;
}

}  // namespace sluice::inferd
