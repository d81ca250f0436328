#include "cli/doctor/gpu_facts.h"

#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <system_error>

namespace sluice::cli {
namespace {

constexpr unsigned kNvidia = 0x10de;
constexpr unsigned kDisplayClass = 0x03;  // the highest byte of a PCI class

unsigned HexIn(const std::filesystem::path& file) {
  std::ifstream stream(file);
  unsigned value = 0;
  stream >> std::hex >> value;
  return stream.fail() ? 0 : value;
}

int CountOnTheBus(const std::string& bus) {
  int count = 0;
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator(bus, error)) {
    const bool display = HexIn(device.path() / "class") >> 16 == kDisplayClass;
    count += display && HexIn(device.path() / "vendor") == kNvidia ? 1 : 0;
  }
  return count;
}

// The Driver API's functions that are asked for here; this program is built without its headers.
struct Driver {
  int (*init)(unsigned);
  int (*version)(int*);
  int (*count)(int*);
  int (*get)(int*, int);
  int (*name)(char*, int, int);
  int (*attribute)(int*, int, int);
  int (*memory)(size_t*, int);
};
// CUdevice_attribute.
constexpr int kMajor = 75;
constexpr int kMinor = 76;

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

void AskDriver(void* library, GpuFacts* facts) {
  Driver d{};
  if (!Find(library, "cuInit", &d.init) || !Find(library, "cuDriverGetVersion", &d.version) ||
      !Find(library, "cuDeviceGetCount", &d.count) || !Find(library, "cuDeviceGet", &d.get) ||
      !Find(library, "cuDeviceGetName", &d.name) || !Find(library, "cuDeviceGetAttribute", &d.attribute) ||
      !Find(library, "cuDeviceTotalMem_v2", &d.memory)) {
    facts->driver = false;
    facts->driver_error = "the library has not the functions of CUDA's driver";
    return;
  }
  d.version(&facts->cuda_version);
  facts->init_error = d.init(0);
  int count = 0;
  if (facts->init_error != 0 || d.count(&count) != 0) {
    return;
  }
  for (int i = 0; i < count; ++i) {
    GpuFact gpu;
    int device = 0;
    char name[256] = {};
    size_t bytes = 0;
    if (d.get(&device, i) == 0 && d.name(name, sizeof(name) - 1, device) == 0 &&
        d.attribute(&gpu.major, kMajor, device) == 0 && d.attribute(&gpu.minor, kMinor, device) == 0 &&
        d.memory(&bytes, device) == 0) {
      gpu.name = name;
      gpu.memory_bytes = bytes;
      facts->found.push_back(gpu);
    }
  }
}

}  // namespace

GpuFacts ReadGpuFacts(const std::string& library, const std::string& bus) {
  GpuFacts facts;
  facts.on_the_bus = CountOnTheBus(bus);
  // Stays loaded: the driver's library has threads of its own once it was asked.
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  facts.driver = handle != nullptr;
  if (facts.driver) {
    AskDriver(handle, &facts);
  } else if (const char* const error = dlerror(); error != nullptr) {
    facts.driver_error = error;
  }
  return facts;
}

}  // namespace sluice::cli
