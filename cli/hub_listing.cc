#include "cli/hub_listing.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/json_reader.h"
#include "common/base/size.h"
#include "common/base/status.h"

namespace sluice::cli {

struct FileDigest::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

FileDigest::FileDigest(DigestKind kind, uint64_t bytes) : impl_(std::make_unique<Impl>()) {
  EVP_DigestInit_ex(impl_->context, kind == DigestKind::kSha256 ? EVP_sha256() : EVP_sha1(), nullptr);
  if (kind == DigestKind::kGitSha1) {
    const std::string head = absl::StrCat("blob ", bytes);
    EVP_DigestUpdate(impl_->context, head.c_str(), head.size() + 1);
  }
}
FileDigest::~FileDigest() = default;
FileDigest::FileDigest(FileDigest&&) noexcept = default;
FileDigest& FileDigest::operator=(FileDigest&&) noexcept = default;

void FileDigest::Update(absl::Span<const std::byte> bytes) {
  EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size());
}

std::string FileDigest::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  if (EVP_DigestFinal_ex(impl_->context, digest, &length) != 1) return "";
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), length});
}

namespace {

constexpr size_t kMaxPageBytes = 64 << 20;
constexpr size_t kMaxPages = 1000;
constexpr size_t kMaxFiles = 100'000;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 50;

bool IsName(const std::string& text) {
  return !text.empty() && text[0] != '.' && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
}

// True for a path that stays below its folder.
bool IsSafePath(const std::string& path) {
  if (path.empty() || path.size() > 1024) return false;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(path, '/'))) {
    if (part.empty() || part == "." || part == ".." || part.size() > 200) return false;
  }
  return std::none_of(path.begin(), path.end(),
                      [](unsigned char c) { return c < 0x20 || c == 0x7f || c == '\\'; });
}

std::string EscapePath(const std::string& path) {
  std::string escaped;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(path, '/'))) {
    absl::StrAppend(&escaped, escaped.empty() ? "" : "/", UrlEscape(part));
  }
  return escaped;
}

// Returns the host of "http://HOST[:PORT]/...", an IPv6 address in its brackets.
std::string HostOf(const std::string& url) {
  const std::string rest = url.substr(url.find("://") + 3);
  if (absl::StartsWith(rest, "[")) return rest.substr(0, rest.find(']') + 1);
  return rest.substr(0, rest.find_first_of(":/"));
}

bool IsHex(const std::string& text, size_t length) {
  return text.size() == length && std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isdigit(c) != 0 || (c >= 'a' && c <= 'f');
         });
}

absl::StatusOr<HubFile> FileOf(const JsonObject& entry) {
  HubFile file;
  ASSIGN_OR_RETURN(file.path, entry.String("path"));
  if (!IsSafePath(file.path)) return entry.Error("path", "leaves its folder, or is none");
  ASSIGN_OR_RETURN(file.bytes, entry.Uint("size", 0, kMaxFileBytes));
  ASSIGN_OR_RETURN(file.digest, entry.String("oid"));
  file.kind = DigestKind::kGitSha1;
  if (entry.Has("lfs")) {
    ASSIGN_OR_RETURN(const JsonObject large, entry.Object("lfs"));
    ASSIGN_OR_RETURN(file.digest, large.String("oid"));
    ASSIGN_OR_RETURN(file.bytes, large.Uint("size", 0, kMaxFileBytes));
    file.kind = DigestKind::kSha256;
  }
  if (!IsHex(file.digest, file.kind == DigestKind::kSha256 ? 64 : 40)) {
    return entry.Error("oid", absl::StrCat("is no digest: ", file.digest.substr(0, 80)));
  }
  return file;
}

struct Page {
  std::string body;
  std::string next;  // URL of the next page; empty: this is the last
};

// Returns the URL of `<URL>; rel="next"`.
std::string NextOf(const std::string& link) {
  for (const std::string& one : std::vector<std::string>(absl::StrSplit(link, ", "))) {
    const size_t end = one.find('>');
    if (!one.empty() && one[0] == '<' && end != std::string::npos && absl::StrContains(one, "rel=\"next\"")) {
      return one.substr(1, end - 1);
    }
  }
  return "";
}

class Asker {
 public:
  Asker(HttpClient* http, const HubAccess& access, const std::atomic<bool>* cancel, const RetryNote& note)
      : http_(http), access_(access), cancel_(cancel), note_(note) {}

  absl::StatusOr<Page> Ask(const std::string& url) const {
    for (Retries retries(cancel_, note_);;) {
      Page page;
      const auto gather = [&page, &url](const HttpHead&, absl::Span<const std::byte> bytes) {
        page.body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        if (page.body.size() <= kMaxPageBytes) return absl::OkStatus();
        return absl::DataLossError(absl::StrCat(url, ": more than ", kMaxPageBytes, " bytes"));
      };
      const absl::StatusOr<HttpHead> head = http_->Get({.url = url, .token = access_.token}, gather);
      const absl::Status status =
          head.ok() ? StatusOfAnswer(*head, access_.repository, !access_.token.empty()) : head.status();
      if (status.ok()) {
        page.next = NextOf(head->Header("link"));
        return page;
      }
      RETURN_IF_ERROR(retries.Wait(status, head.ok() ? head->retry_after : std::nullopt, /*progress=*/false));
    }
  }

 private:
  HttpClient* const http_;
  const HubAccess& access_;
  const std::atomic<bool>* const cancel_;
  const RetryNote& note_;
};

}  // namespace

absl::Status CheckAccess(const HubAccess& access) {
  const std::vector<std::string> names = absl::StrSplit(access.repository, '/');
  if (names.size() != 2 || !IsName(names[0]) || !IsName(names[1])) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", access.repository, "' is no OWNER/NAME of a repository"));
  }
  const bool encrypted = absl::StartsWith(access.endpoint, "https://");
  if (!encrypted && !absl::StartsWith(access.endpoint, "http://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--endpoint ", access.endpoint, ": no http:// or https:// URL"));
  }
  const std::string host = HostOf(access.endpoint);
  const bool local = host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
  if (!access.token.empty() && !encrypted && !local) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--endpoint ", access.endpoint, ": the token of HF_TOKEN is not sent unencrypted; use https"));
  }
  return absl::OkStatus();
}

std::string FileUrl(const HubAccess& access, const std::string& commit, const std::string& path) {
  return absl::StrCat(access.endpoint, "/", access.repository, "/resolve/", UrlEscape(commit), "/",
                      EscapePath(path));
}

absl::StatusOr<std::vector<HubFile>> FilesOfPage(const std::string& json, const std::string& subject) {
  const auto loss = [](const absl::Status& status) {
    return status.ok() ? status : absl::DataLossError(status.message());
  };
  const absl::StatusOr<nlohmann::json> page = ParseJson(json, subject);
  RETURN_IF_ERROR(loss(page.status()));
  if (!page->is_array()) return absl::DataLossError(absl::StrCat(subject, ": no list of files"));
  std::vector<HubFile> files;
  for (size_t i = 0; i < page->size(); ++i) {
    const auto entry = JsonObject::Of((*page)[i], absl::StrCat(subject, ": file ", i));
    RETURN_IF_ERROR(loss(entry.status()));
    const auto type = entry->String("type");
    RETURN_IF_ERROR(loss(type.status()));
    if (*type != "file") continue;
    absl::StatusOr<HubFile> file = FileOf(*entry);
    RETURN_IF_ERROR(loss(file.status()));
    files.push_back(std::move(*file));
  }
  return files;
}

absl::StatusOr<HubListing> ListRepository(HttpClient* http, const HubAccess& access,
                                          const std::atomic<bool>* cancel, const RetryNote& note) {
  const Asker asker(http, access, cancel, note);
  const std::string api = absl::StrCat(access.endpoint, "/api/models/", access.repository);
  HubListing listing;
  const std::string about = absl::StrCat(api, "/revision/", UrlEscape(access.revision));
  ASSIGN_OR_RETURN(const Page revision, asker.Ask(about));
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(revision.body, about));
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, about));
  ASSIGN_OR_RETURN(listing.commit, object.String("sha"));
  if (!IsHex(listing.commit, 40)) {
    return absl::DataLossError(absl::StrCat(about, ": no commit: ", listing.commit.substr(0, 80)));
  }
  std::string url = absl::StrCat(api, "/tree/", listing.commit, "?recursive=true");
  for (size_t pages = 0; !url.empty(); ++pages) {
    if (pages == kMaxPages || listing.files.size() > kMaxFiles) {
      return absl::DataLossError(absl::StrCat(api, ": a list of more than ", kMaxFiles, " files"));
    }
    ASSIGN_OR_RETURN(const Page page, asker.Ask(url));
    ASSIGN_OR_RETURN(std::vector<HubFile> files, FilesOfPage(page.body, url));
    std::move(files.begin(), files.end(), std::back_inserter(listing.files));
    // The token must not be sent to another server.
    if (!page.next.empty() && !absl::StartsWith(page.next, absl::StrCat(access.endpoint, "/"))) {
      return absl::DataLossError(absl::StrCat(url, ": goes on elsewhere: ", page.next.substr(0, 200)));
    }
    url = page.next;
  }
  return listing;
}

namespace {

constexpr char kConfig[] = "config.json";
constexpr size_t kShown = 20;
constexpr char kToolTemplate[] = "additional_chat_templates/tool_use.jinja";

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool IsGguf(const HubFile& file) {
  // Projectors of vision models are GGUF files too, but no models.
  return absl::EndsWith(file.path, ".gguf") && !absl::StartsWith(BaseName(file.path), "mmproj");
}

// True for configuration, tokenizer and templates: small files that the packer reads or copies.
bool IsSmallPart(const std::string& path) {
  static constexpr const char* kNames[] = {"tokenizer.model", "merges.txt", "vocab.txt"};
  return absl::EndsWith(path, ".json") || absl::EndsWith(path, ".jinja") ||
         absl::EndsWith(path, ".tiktoken") ||
         std::find(std::begin(kNames), std::end(kNames), path) != std::end(kNames);
}

// Groups the parts of each GGUF model under the path of the first one.
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

// Lists the models, each with the size of all its parts.
std::string Shown(const std::map<std::string, std::vector<HubFile>>& models) {
  std::vector<HubFile> firsts;
  for (const auto& [path, parts] : models) {
    HubFile sum{.path = path};
    for (const HubFile& part : parts) sum.bytes += part.bytes;
    firsts.push_back(sum);
  }
  return Shown(firsts);
}

// The first part comes last: without it the others do not count as a model.
FileChoice OfGguf(const std::string& first, const std::vector<HubFile>& parts) {
  return {.files = {parts.rbegin(), parts.rend()}, .model = first};
}

FileChoice ChooseFolder(const std::vector<HubFile>& files) {
  std::vector<HubFile> weights;
  std::vector<HubFile> small;
  const HubFile* config = nullptr;
  for (const HubFile& file : files) {
    if (absl::StrContains(file.path, '/') && file.path != kToolTemplate) continue;
    if (file.path == kConfig) {
      config = &file;
    } else if (absl::EndsWith(file.path, ".safetensors")) {
      weights.push_back(file);
    } else if (IsSmallPart(file.path)) {
      small.push_back(file);
    }
  }
  // Some repositories hold the weights twice, the second time in the format that they were trained in.
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
