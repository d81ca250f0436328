#include "common/protocol/cuda_module.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr char kFile[] = "libsluice_cuda.so";
constexpr char kVariable[] = "SLUICE_CUDA_MODULE";
constexpr char kHowToBuild[] =
    "; a build makes it where nvcc is (deploy/install_deps.sh --cuda), and SLUICE_CUDA_MODULE can name it";

absl::Status Missing(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("device cuda: ", what));
}

// The dynamic linker reports only by text what is missing: the module itself, or the driver's library.
absl::Status WhyNotLoaded(const std::string& path, const std::string& words) {
  if (absl::StrContains(words, "libcuda.so")) {
    return Missing(
        absl::StrCat("the driver is missing (", words, "); Debian has it as the package nvidia-driver"));
  }
  return Missing(absl::StrCat("the module ", path, " cannot be loaded (", words, ")", kHowToBuild));
}

absl::StatusOr<const CudaModuleApi*> Load() {
  const std::vector<std::string> paths = CudaModulePaths();
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      continue;
    }
    // Never closed: objects of its classes may live until the process ends.
    void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) {
      return WhyNotLoaded(path, dlerror());
    }
    auto* const entry = reinterpret_cast<CudaModuleFn*>(dlsym(module, kCudaModuleSymbol));
    if (entry == nullptr) {
      return Missing(absl::StrCat(path, " is no module of sluice", kHowToBuild));
    }
    const CudaModuleApi* const api = entry();
    if (std::strcmp(api->interface_digest, SLUICE_CUDA_INTERFACE) != 0) {
      return Missing(absl::StrCat("the module ", path, " belongs to another build of sluice", kHowToBuild));
    }
    const absl::Status usable = api->check();
    return usable.ok() ? absl::StatusOr<const CudaModuleApi*>(api) : usable;
  }
  return Missing(
      absl::StrCat("the module is missing: there is no ", absl::StrJoin(paths, " and no "), kHowToBuild));
}

}  // namespace

std::vector<std::string> CudaModulePaths() {
  if (const char* const named = std::getenv(kVariable); named != nullptr && *named != '\0') {
    return {named};
  }
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path folder = program.parent_path();
  return {(folder / kFile).string(), (folder.parent_path() / "lib" / "sluice" / kFile).string()};
}

absl::StatusOr<const CudaModuleApi*> LoadCudaModule() {
  static const auto* const loaded = new absl::StatusOr<const CudaModuleApi*>(Load());
  return *loaded;
}

absl::StatusOr<Copier*> LoadedCopier::Load() {
  ASSIGN_OR_RETURN(const CudaModuleApi* const module, LoadCudaModule());
  const MutexLock lock(&mutex_);
  if (loaded_ == nullptr) {
    absl::Status error;
    loaded_.reset(module->new_copier(&error));
    RETURN_IF_ERROR(error);
    for (auto& [base, source] : sources_) {
      loaded_->AddSource({base, source.bytes}, source.owner);
    }
  }
  return loaded_.get();
}

absl::StatusOr<std::shared_ptr<Slab>> LoadedCopier::Open(UniqueFd fd, const SlabHandle& handle) {
  ASSIGN_OR_RETURN(Copier* const loaded, Load());
  return loaded->Open(std::move(fd), handle);
}

absl::Status LoadedCopier::Begin(uint64_t tag, const TransferPlan& plan, const PlanChunk& chunk, Slab* slab) {
  return loaded()->Begin(tag, plan, chunk, slab);  // there is a slab, so there is a copier
}

std::vector<CopyDone> LoadedCopier::Completed(int64_t max_wait_nanos) {
  Copier* const copier = loaded();
  return copier == nullptr ? std::vector<CopyDone>() : copier->Completed(max_wait_nanos);
}

void LoadedCopier::AddSource(absl::Span<const std::byte> memory, std::shared_ptr<const void> owner) {
  const MutexLock lock(&mutex_);
  if (loaded_ != nullptr) {
    loaded_->AddSource(memory, owner);
  }
  sources_[memory.data()] = {memory.size(), std::move(owner)};
}

void LoadedCopier::RemoveSource(const std::byte* base) {
  Copier* copier = nullptr;
  {
    const MutexLock lock(&mutex_);
    sources_.erase(base);
    copier = loaded_.get();
  }
  if (copier != nullptr) {
    copier->RemoveSource(base);  // may take a while
  }
}

}  // namespace sluice
