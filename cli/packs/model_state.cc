#include "cli/packs/model_state.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

// "model-" of "model-00001-of-00003.gguf", all of "model.gguf".
std::string CommonName(const std::string& name) {
  constexpr size_t kSplitEnd = sizeof("00001-of-00003.gguf") - 1;
  const bool split = name.size() > kSplitEnd && name.substr(name.size() - kSplitEnd + 5, 4) == "-of-";
  return split ? name.substr(0, name.size() - kSplitEnd) : name;
}

}  // namespace

std::string ModelState(const std::string& model) {
  std::error_code error;
  const bool folder = fs::is_directory(model, error);
  const fs::path path(model);
  const std::string first = folder ? "" : CommonName(path.filename().string());
  const fs::path dir = folder ? path : path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::vector<std::string> files;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const std::string name = it->path().filename().string();
    if (!absl::StartsWith(name, first) || !it->is_regular_file(ignored)) continue;
    const auto changed = fs::last_write_time(it->path(), ignored).time_since_epoch().count();
    files.push_back(
        absl::StrCat(name, " ", fs::file_size(it->path(), ignored), " ", static_cast<int64_t>(changed)));
  }
  std::sort(files.begin(), files.end());
  return absl::StrJoin(files, "\n");
}

}  // namespace sluice::cli
