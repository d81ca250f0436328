// PrefixFile: the file in which past texts (inferd/prefix) outlive the process.
//
// A file that cannot be used costs time, not answers: what it would have saved is computed again. So nothing
// here is an error; the log says what happened.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <string>

#include "inferd/engine/engine.h"
#include "spdlog/logger.h"

namespace sluice {

class PrefixFile {
 public:
  // At most `limit` bytes are saved. `log` is borrowed.
  PrefixFile(std::string path, uint64_t limit, spdlog::logger* log);

  // What the file has is the engine's. REQUIRES: nobody else uses the engine yet.
  void Load(Engine* engine);
  // The other way round.
  void Save(Engine* engine);

 private:
  const std::string path_;
  const uint64_t limit_;
  spdlog::logger* const log_;
};

}  // namespace sluice
