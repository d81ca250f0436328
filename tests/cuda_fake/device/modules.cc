#include "tests/cuda_fake/device/modules.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/cuda_fake/ptx/parser.h"

namespace sluice::cuda_fake {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kDataMagic = 0xBA55ED50;
constexpr uint16_t kPtxKind = 1;

struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const uint8_t* data;
};
struct DataHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;
};
struct EntryHeader {
  uint16_t kind;
  uint16_t flags;
  uint32_t header_bytes;
  uint64_t bytes;
};

// Read once for the process; where it fails, the status says why.
using ParsedModules = std::vector<absl::StatusOr<Module>>;
const ParsedModules& ParsedOf(const void* wrapper) {
  static auto* const all = new std::map<const void*, ParsedModules>;
  const auto [it, is_new] = all->try_emplace(wrapper);
  if (is_new) {
    for (const std::string& text : PtxOf(wrapper)) {
      it->second.push_back(ParsePtx(text));
    }
  }
  return it->second;
}

}  // namespace

Registry& GlobalRegistry() {
  static auto* const registry = new Registry;
  return *registry;
}

std::vector<std::string> PtxOf(const void* wrapper) {
  std::vector<std::string> texts;
  Wrapper outer;
  std::memcpy(&outer, wrapper, sizeof(outer));
  DataHeader data{};
  if (outer.magic == kWrapperMagic) {
    std::memcpy(&data, outer.data, sizeof(data));
  }
  if (data.magic != kDataMagic) {
    return texts;
  }
  const uint8_t* at = outer.data + data.header_bytes;
  const uint8_t* const end = at + data.bytes;
  while (at + sizeof(EntryHeader) <= end) {
    EntryHeader entry;
    std::memcpy(&entry, at, sizeof(entry));
    if (entry.kind == kPtxKind) {
      const char* const text = reinterpret_cast<const char*>(at + entry.header_bytes);
      texts.emplace_back(text, strnlen(text, entry.bytes));
    }
    at += entry.header_bytes + entry.bytes;
  }
  return texts;
}

// "The highest PTX version that is at most the device's capability is chosen and compiled for it" (nvcc
// manual, just-in-time compilation).
absl::StatusOr<const Modules::Loaded*> Modules::Load(const void* binary) {
  if (const auto it = loaded_.find(binary); it != loaded_.end()) {
    return &it->second;
  }
  const Module* best = nullptr;
  for (const absl::StatusOr<Module>& module : ParsedOf(binary)) {
    if (!module.ok()) {
      return module.status();
    }
    if (module->target <= capability_ && (best == nullptr || module->target > best->target)) {
      best = &*module;
    }
  }
  if (best == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("the object has no readable PTX for a device of capability ", capability_,
                     ": was it compiled with -gencode arch=compute_..,code=compute_.. -no-compress?"));
  }
  Loaded& loaded = loaded_[binary];
  loaded.module = best;
  for (const auto& variable : best->variables) {
    if (variable.space == Space::kShared) {
      continue;
    }
    const uint64_t address = memory_->Allocate(variable.bytes, absl::StrCat("variable ", variable.name));
    const Region* const region = memory_->Find(address);
    if (region == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for variable ", variable.name));
    }
    std::memset(region->bytes, 0, variable.bytes);
    std::memcpy(region->bytes, variable.initial.data(), variable.initial.size());
    region->shadow->MarkWritten();
    loaded.symbols[variable.name] = address;
  }
  return &loaded;
}

absl::StatusOr<const Program*> Modules::Kernel(const void* stub) {
  if (const auto it = programs_.find(stub); it != programs_.end()) {
    return &it->second;
  }
  for (const RegisteredName& registered : GlobalRegistry().kernels) {
    if (registered.host != stub) {
      continue;
    }
    ASSIGN_OR_RETURN(const Loaded* loaded, Load(registered.binary));
    const auto kernel = loaded->module->kernels.find(registered.name);
    if (kernel == loaded->module->kernels.end()) {
      return absl::NotFoundError(absl::StrCat("the PTX has no kernel ", registered.name));
    }
    ASSIGN_OR_RETURN(Program program, Decode(*loaded->module, kernel->second, loaded->symbols));
    return &programs_.emplace(stub, std::move(program)).first->second;
  }
  return absl::NotFoundError("no object has registered this kernel");
}

absl::StatusOr<uint64_t> Modules::Variable(const void* host) {
  for (const RegisteredName& registered : GlobalRegistry().variables) {
    if (registered.host == host) {
      ASSIGN_OR_RETURN(const Loaded* loaded, Load(registered.binary));
      const auto it = loaded->symbols.find(registered.name);
      if (it != loaded->symbols.end()) {
        return it->second;
      }
    }
  }
  return absl::NotFoundError("no object has registered this variable");
}

}  // namespace sluice::cuda_fake
