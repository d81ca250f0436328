// InferdDaemon, the components of one inferd process, and PrefixFile, its saved prefix cache.
//
// PrefixFile: the file that keeps cached prefixes over restarts.
//
// An unusable file costs time, not answers: its prefixes are computed again. So nothing here is an error; the
// log says what happened.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <string>

#include "inferd/engine/engine.h"
#include "spdlog/logger.h"

namespace sluice::inferd {

class PrefixFile {
 public:
  // At most `limit` bytes are saved. `log` is borrowed.
  PrefixFile(std::string path, uint64_t limit, spdlog::logger* log);

  // Loads the file into the engine's prefix cache. REQUIRES: nobody else uses the engine yet.
  void Load(Engine* engine);
  // Saves the engine's prefix cache to the file.
  void Save(Engine* engine);

 private:
  const std::string path_;
  const uint64_t limit_;
  spdlog::logger* const log_;
};

}  // namespace sluice::inferd
