#include "cli/pack_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cli/output_files.h"
#include "cli/pack_progress.h"
#include "cli/plan.h"
#include "common/base/checksum.h"
#include "common/base/file_io.h"
#include "common/base/machine_facts.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "pack/in_place/in_place_index.h"
#include "pack/pack.h"
#include "pack/pack_format.h"
#include "pack/writer/pack_writer.h"
#include "pack/writer/staging.h"

namespace sluice::cli {
RecipeOptions RowOptions::Words() const {
  RecipeOptions words;
  words.bits = bits.value_or("");
  words.recipe = recipe;
  if (group.has_value()) words.group = static_cast<int>(*group);
  if (meta_bits.has_value()) words.meta_bits = *meta_bits == "8" ? 8 : 16;
  words.dense_bits = dense_bits.value_or("");
  words.down_bits = down_bits.value_or("");
  words.layout = layout;
  words.hot_share = hot_share;
  return words;
}

void DeclareRowOptions(ArgParser* parser, RowOptions* o) {
  const std::vector<std::string> bits = {"bf16", "f16", "q8", "q4", "q3", "q2"};
  std::vector<std::string> expert_bits = bits;
  expert_bits.push_back("source");  // rows as in the model's files, dense ones too
  parser->Group("Rows")
      .Choice("--bits", expert_bits, &o->bits,
              "of the experts [bf16; of a GGUF file its own]; with floe of gate, down")
      .Text("--recipe", &o->recipe, "floe, corm, resident-q2, q4+2, q4-all, or a .toml file")
      .Number("--group", &o->group, "values that share a scale [the recipe's, else 64]", 16, 128)
      .Choice("--meta-bits", {"16", "8"}, &o->meta_bits, "of a scale or zero [the recipe's, else 16]")
      .Choice("--dense-bits", bits, &o->dense_bits, "of attention, embeddings, head [--bits, at least q8]")
      .Choice("--down-bits", bits, &o->down_bits, "GGUF without --bits: down by neurons, in these")
      .Text("--layout", &o->layout,
            "up|gate|down, up|gate+down, gate|up+down, or up|gate|outputs: down by outputs [the recipe's]")
      .Real("--hot-share", &o->hot_share, "corm: share of a layer's experts that get q4 [0.5]", 0, 1);
}

absl::Status CheckModelTexts(const std::string& model,
                             const std::map<std::string, std::string>& tokenizer_files,
                             const std::string& chat_template) {
  if (!tokenizer_files.empty()) {
    const auto tokenizer = Tokenizer::LoadFromFiles(tokenizer_files);
    if (!tokenizer.ok()) return Annotate(tokenizer.status(), model);
  }
  if (chat_template.empty()) return absl::OkStatus();
  const auto chat = ChatTemplate::Create(chat_template, {});
  if (!chat.ok()) {
    std::fprintf(stderr, "sluice: %s: chats cannot be rendered: %s\n", model.c_str(),
                 std::string(chat.status().message()).c_str());
  }
  return absl::OkStatus();
}

namespace {

namespace fs = std::filesystem;

// Returns "model-" for "model-00001-of-00003.gguf", and "model.gguf" unchanged.
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

namespace {

constexpr char kPackEnd[] = ".pack";
constexpr char kLockEnd[] = ".lock";
constexpr char kInPlace[] = "in-place";     // in names, instead of bits
constexpr char kPartialEnd[] = ".partial";  // as in PartialFolder()

bool IsPack(const std::string& path) { return FileExists(absl::StrCat(path, "/", kManifestName)); }

// Returns the model's name, restricted to characters that every file system accepts.
std::string NameOf(const fs::path& model) {
  std::string name = (model.has_filename() ? model : model.parent_path()).filename().string();
  name = std::string(absl::StripSuffix(name, ".gguf"));
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0 && c != '.' && c != '_'; },
      '-');
  return name.empty() || name[0] == '.' ? "model" : name.substr(0, 80);
}

// Builds the names of one model's packs: "NAME-q4-0123456789abcdef" for "q4".
class Names {
 public:
  explicit Names(const std::string& model) : name_(NameOf(model)), model_(model), state_(ModelState(model)) {}

  std::string With(const std::string& bits) const {
    const std::string identity = absl::StrCat(model_, "\n", state_, "\n", bits);
    return absl::StrCat(name_, "-", bits, "-", DigestOf(identity).ToHex().substr(0, 16));
  }

 private:
  const std::string name_;
  const std::string model_;
  const std::string state_;
};

absl::StatusOr<PackOptions> OptionsFor(const std::string& bits) {
  PackOptions options;
  ASSIGN_OR_RETURN(options.recipe, RecipeOfBits(bits));
  return options;
}

// Chooses by memory alone: measuring speed takes seconds, and does not matter between bits that fit.
absl::StatusOr<PlanChoice> ChooseBits(const std::string& model) {
  MemoryRequest request;
  ASSIGN_OR_RETURN(const MemoryFacts memory, ReadMemoryFacts());
  request.memory = UsableMemory(memory);
  request.threads = std::max(1u, std::thread::hardware_concurrency());
  ASSIGN_OR_RETURN(const ModelFacts facts, ReadModelFacts(model, ChosenBits(IsGgufFile(model))));
  std::vector<PlanRow> rows;
  for (const StoredSizes& sizes : facts.stored) {
    PlanRow row{.bits = sizes.bits, .preset = "exact", .sizes = sizes};
    ASSIGN_OR_RETURN(row.memory, PlanMemory(facts.config, sizes, request));
    rows.push_back(std::move(row));
  }
  PlanChoice choice = Choose(rows);
  for (const PlanRow& row : rows) {
    // No option of the daemons could make these weights fit.
    if (row.bits == choice.bits && row.memory.dram_budget < row.memory.least_budget) {
      return absl::ResourceExhaustedError(absl::StrCat(model, " as ", choice.bits, ": ", row.memory.refusal,
                                                       "; --bits packs it in spite of that"));
    }
  }
  return choice;
}

absl::StatusOr<UniqueFd> LockPack(const CommandContext& context, const std::string& path, bool quiet) {
  Progress progress("waiting", ProgressUnit::kItems, quiet);
  return LockFile(path, absl::InfiniteDuration(), context.interrupt->flag(), [&](const std::string&) {
    if (!quiet) std::fprintf(stderr, "sluice: another command packs this model; waiting for it\n");
  });
}

// Makes the index of a GGUF file that can be served in place. Unimplemented: it cannot, and was not.
absl::Status MakeIndex(const ModelRequest& request, const std::string& out) {
  const std::string partial = PartialFolder(out);
  std::error_code error;
  fs::remove_all(partial, error);
  RETURN_IF_ERROR(WriteInPlaceIndex(request.model, partial));
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(partial));
  ASSIGN_OR_RETURN(const auto tokenizer_files, pack->ReadTokenizerFiles());
  RETURN_IF_ERROR(CheckModelTexts(request.model, tokenizer_files, pack->chat_template()));
  fs::rename(partial, out, error);
  if (error) return ErrnoToStatus(error.value(), absl::StrCat("cannot rename ", partial));
  if (!request.quiet) {
    std::fprintf(stderr, "sluice: %s is served in place; %s is its index\n", request.model.c_str(),
                 out.c_str());
  }
  return absl::OkStatus();
}

// Returns the index at `path`, made if it is missing. Unimplemented: the model must be packed.
absl::StatusOr<std::string> IndexOf(const CommandContext& context, const ModelRequest& request,
                                    const std::string& path) {
  const std::string lock_path = path + kLockEnd;
  ASSIGN_OR_RETURN(const UniqueFd lock, LockPack(context, lock_path, request.quiet));
  utimensat(AT_FDCWD, lock_path.c_str(), nullptr, 0);
  if (IsPack(path + kPackEnd)) return path + kPackEnd;
  const absl::Status made = MakeIndex(request, path + kPackEnd);
  if (made.ok()) return path + kPackEnd;
  std::error_code error;
  fs::remove(lock_path, error);
  return made;
}

absl::Status MakePack(const CommandContext& context, const ModelRequest& request, const std::string& out,
                      const PlanChoice& choice) {
  ASSIGN_OR_RETURN(const PackOptions options, OptionsFor(choice.bits));
  ASSIGN_OR_RETURN(const PackEstimate estimate, EstimatePack(request.model, out, options));
  RETURN_IF_ERROR(CheckModelTexts(request.model, estimate.tokenizer_files, estimate.chat_template));
  if (!request.quiet) {
    const std::string why = choice.why.empty() ? "" : absl::StrCat("; ", choice.why);
    std::fprintf(stderr, "sluice: %s is packed once, as %s (%s%s), into %s%s\n", request.model.c_str(),
                 choice.bits.c_str(), FormatSize(estimate.payload_bytes).c_str(), why.c_str(), out.c_str(),
                 estimate.resumable_bytes > 0 ? ", where an earlier packing goes on" : "");
  }
  PackProgressBar bar(request.quiet);
  const absl::StatusOr<PackSummary> made =
      PackModel(request.model, out, options, bar.callback(), context.interrupt->flag());
  bar.Finish();
  if (absl::IsResourceExhausted(made.status())) {
    return Annotate(
        made.status(),
        "the cache of packs (SLUICE_CACHE_DIR says where it is; `sluice packs list` what is in it)");
  }
  return made.status();
}

}  // namespace

absl::StatusOr<std::string> CacheFolder(const std::string& name) {
  const std::pair<const char*, const char*> places[] = {
      {"SLUICE_CACHE_DIR", ""}, {"XDG_CACHE_HOME", "/sluice"}, {"HOME", "/.cache/sluice"}};
  for (const auto& [variable, below] : places) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return absl::StrCat(value, below, "/", name);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no folder for ", name, ": none of SLUICE_CACHE_DIR, XDG_CACHE_HOME and HOME is set"));
}

absl::StatusOr<std::string> PackCacheFolder() { return CacheFolder("packs"); }

absl::StatusOr<std::string> PackOf(const CommandContext& context, const ModelRequest& request) {
  std::error_code error;
  const std::string model = fs::canonical(request.model, error).string();
  if (error) {
    return ErrnoToStatus(error.value(), absl::StrCat("--model ", request.model));
  }
  if (IsPack(model)) {
    if (!request.bits.has_value()) return model;
    return absl::InvalidArgumentError(absl::StrCat("--bits ", *request.bits, ": ", request.model,
                                                   " is a pack, whose rows are as they are"));
  }
  ASSIGN_OR_RETURN(const std::string folder, PackCacheFolder());
  fs::create_directories(folder, error);
  if (error) {
    return ErrnoToStatus(error.value(), absl::StrCat("cannot make the folder ", folder));
  }
  const Names names(model);
  ModelRequest resolved = request;
  resolved.model = model;
  const std::string index_path = absl::StrCat(folder, "/", names.With(kInPlace));
  PlanChoice choice;
  if (request.bits.has_value()) {
    choice.bits = *request.bits;
    if (choice.bits == kAsInFile && !IsGgufFile(model)) return IndexOf(context, resolved, index_path);
    if (IsAsInFile(choice.bits) && !IsGgufFile(model)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--bits ", choice.bits, ": ", request.model, " is no GGUF file"));
    }
  } else {
    // Reuses an existing pack even if memory has changed since, because nobody wants to wait for another
    // conversion unasked.
    for (const std::string& bits : ChosenBits(IsGgufFile(model))) {
      if (choice.bits.empty() && IsPack(absl::StrCat(folder, "/", names.With(bits), kPackEnd)))
        choice.bits = bits;
    }
    if (choice.bits.empty() && IsGgufFile(model)) {
      const absl::StatusOr<std::string> index = IndexOf(context, resolved, index_path);
      if (!absl::IsUnimplemented(index.status())) return index;
      if (!request.quiet) {
        std::fprintf(stderr, "sluice: not served in place: %s\n",
                     std::string(index.status().message()).c_str());
      }
    }
    if (choice.bits.empty()) {
      ASSIGN_OR_RETURN(choice, ChooseBits(model));
    }
  }
  const std::string path = absl::StrCat(folder, "/", names.With(choice.bits));
  const std::string lock_path = path + kLockEnd;
  ASSIGN_OR_RETURN(const UniqueFd lock, LockPack(context, lock_path, request.quiet));
  utimensat(AT_FDCWD, lock_path.c_str(), nullptr, 0);
  if (!IsPack(path + kPackEnd)) {
    RETURN_IF_ERROR(MakePack(context, resolved, path + kPackEnd, choice));
  }
  return path + kPackEnd;
}

absl::StatusOr<std::vector<CachedPack>> ListCachedPacks(const std::string& folder) {
  std::map<std::string, CachedPack> packs;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    const bool partial = absl::EndsWith(name, kPartialEnd);
    name = std::string(absl::StripSuffix(name, kPartialEnd));
    if (!absl::EndsWith(name, kPackEnd)) continue;
    name = std::string(absl::StripSuffix(name, kPackEnd));
    CachedPack& pack = packs[name];
    pack.name = name;
    pack.path = absl::StrCat(folder, "/", name, kPackEnd);
    pack.bytes += AllocatedBytes(it->path().string());
    pack.complete = pack.complete || !partial;
    struct stat lock {};
    if (stat(absl::StrCat(folder, "/", name, kLockEnd).c_str(), &lock) == 0) {
      pack.used = absl::TimeFromTimespec(lock.st_mtim);
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return ErrnoToStatus(error.value(), absl::StrCat("cannot list ", folder));
  }
  std::vector<CachedPack> list;
  for (auto& [name, pack] : packs) list.push_back(std::move(pack));
  return list;
}

absl::Status RemoveCachedPack(const std::string& folder, const std::string& name) {
  ASSIGN_OR_RETURN(const std::vector<CachedPack> packs, ListCachedPacks(folder));
  const auto found =
      std::find_if(packs.begin(), packs.end(), [&](const CachedPack& p) { return p.name == name; });
  if (found == packs.end()) {
    return absl::NotFoundError(absl::StrCat(folder, " has no pack ", name));
  }
  const std::string lock_path = absl::StrCat(folder, "/", name, kLockEnd);
  const absl::StatusOr<UniqueFd> lock = LockFile(lock_path, absl::ZeroDuration(), nullptr);
  if (absl::IsDeadlineExceeded(lock.status())) {
    return absl::UnavailableError(absl::StrCat(name, " is being made by another command"));
  }
  RETURN_IF_ERROR(lock.status());
  for (const std::string& path : {found->path, PartialFolder(found->path), lock_path}) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) {
      return ErrnoToStatus(error.value(), absl::StrCat("cannot remove ", path));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::cli
