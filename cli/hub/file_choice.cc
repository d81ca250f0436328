#include "cli/hub/file_choice.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/size.h"

namespace sluice::cli {
namespace {

constexpr char kConfig[] = "config.json";
constexpr size_t kShown = 20;

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool IsGguf(const HubFile& file) {
  // Projectors of vision models stand beside them, and are none.
  return absl::EndsWith(file.path, ".gguf") && !absl::StartsWith(BaseName(file.path), "mmproj");
}

// Configuration, tokenizer, templates: small, and read by the packer or by what it copies.
bool IsSmallPart(const std::string& path) {
  static constexpr const char* kNames[] = {"tokenizer.model", "merges.txt", "vocab.txt"};
  return absl::EndsWith(path, ".json") || absl::EndsWith(path, ".jinja") ||
         absl::EndsWith(path, ".tiktoken") ||
         std::find(std::begin(kNames), std::end(kNames), path) != std::end(kNames);
}

// The parts of each GGUF model by the path of its first.
std::map<std::string, std::vector<HubFile>> GgufModels(const std::vector<HubFile>& files) {
  constexpr size_t kEnd = sizeof("00001-of-00003.gguf") - 1;
  std::map<std::string, std::vector<HubFile>> by_stem;
  for (const HubFile& file : files) {
    if (!IsGguf(file)) continue;
    const size_t size = file.path.size();
    const bool split = size > kEnd && file.path.compare(size - kEnd + 5, 4, "-of-") == 0;
    by_stem[split ? file.path.substr(0, size - kEnd) : file.path].push_back(file);
  }
  std::map<std::string, std::vector<HubFile>> models;
  for (auto& [stem, parts] : by_stem) {
    std::sort(parts.begin(), parts.end(), [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
    models[parts.front().path] = parts;
  }
  return models;
}

std::string Shown(const std::vector<HubFile>& files) {
  std::vector<std::string> texts;
  for (const HubFile& file : files) {
    if (texts.size() == kShown) {
      texts.push_back(absl::StrCat("and ", files.size() - kShown, " more"));
      break;
    }
    texts.push_back(absl::StrCat(file.path, " (", FormatSize(file.bytes), ")"));
  }
  return absl::StrJoin(texts, ", ");
}

// The size is that of all parts.
std::string Shown(const std::map<std::string, std::vector<HubFile>>& models) {
  std::vector<HubFile> firsts;
  for (const auto& [path, parts] : models) {
    HubFile sum{.path = path};
    for (const HubFile& part : parts) sum.bytes += part.bytes;
    firsts.push_back(sum);
  }
  return Shown(firsts);
}

// The first part last: without it nobody takes the others for a model.
FileChoice OfGguf(const std::string& first, const std::vector<HubFile>& parts) {
  return {.files = {parts.rbegin(), parts.rend()}, .model = first};
}

FileChoice ChooseFolder(const std::vector<HubFile>& files) {
  std::vector<HubFile> weights;
  std::vector<HubFile> small;
  const HubFile* config = nullptr;
  for (const HubFile& file : files) {
    if (absl::StrContains(file.path, '/')) continue;
    if (file.path == kConfig) {
      config = &file;
    } else if (absl::EndsWith(file.path, ".safetensors")) {
      weights.push_back(file);
    } else if (IsSmallPart(file.path)) {
      small.push_back(file);
    }
  }
  // Some repositories hold the weights twice, once as their maker trained them.
  const auto consolidated = [](const HubFile& file) { return absl::StartsWith(file.path, "consolidated"); };
  if (!std::all_of(weights.begin(), weights.end(), consolidated)) {
    weights.erase(std::remove_if(weights.begin(), weights.end(), consolidated), weights.end());
  }
  FileChoice choice;
  if (weights.empty() || config == nullptr) return choice;
  choice.files = small;
  choice.files.insert(choice.files.end(), weights.begin(), weights.end());
  choice.files.push_back(*config);
  return choice;
}

}  // namespace

absl::StatusOr<FileChoice> ChooseFiles(const std::vector<HubFile>& files, const std::string& wanted) {
  const std::map<std::string, std::vector<HubFile>> models = GgufModels(files);
  if (wanted.empty()) {
    const FileChoice folder = ChooseFolder(files);
    if (!folder.files.empty()) return folder;
    if (models.size() == 1) return OfGguf(models.begin()->first, models.begin()->second);
    if (models.empty()) {
      return absl::NotFoundError(absl::StrCat(
          "no model that can be packed: neither config.json with .safetensors nor a .gguf among ",
          files.empty() ? "no files" : Shown(files)));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("several models; say which as OWNER/NAME:FILE: ", Shown(models)));
  }
  const std::string lower = absl::AsciiStrToLower(wanted);
  std::map<std::string, std::vector<HubFile>> fitting;
  for (const auto& [first, parts] : models) {
    const bool named =
        std::any_of(parts.begin(), parts.end(), [&](const HubFile& p) { return p.path == wanted; });
    if (named) return OfGguf(first, parts);
    if (absl::StrContains(absl::AsciiStrToLower(first), lower)) fitting[first] = parts;
  }
  for (const HubFile& file : files) {
    if (file.path == wanted) return FileChoice{.files = {file}, .model = wanted, .is_model = false};
  }
  if (fitting.size() == 1) return OfGguf(fitting.begin()->first, fitting.begin()->second);
  if (fitting.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no file ", wanted, " among ", files.empty() ? "none" : Shown(files)));
  }
  return absl::InvalidArgumentError(absl::StrCat(wanted, " fits several models: ", Shown(fitting)));
}

}  // namespace sluice::cli
