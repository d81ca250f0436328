#include "inferd/daemon/self_description.h"

#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>
#include <spdlog/version.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"

namespace sluice::inferd {

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::canonical(path, error);
  return error ? path : canonical.string();
}

ServedModel DescribeModel(const Pack& pack, const std::string& path, uint32_t context) {
  const ModelConfig& config = pack.config();
  ServedModel model;
  model.id = pack.model_id();
  model.name = std::filesystem::path(AbsolutePath(path)).filename().string();
  model.family = config.family;
  model.vocab = config.vocab;
  model.hidden = config.hidden;
  model.layers = static_cast<uint32_t>(config.layers.size());
  for (const LayerConfig& layer : config.layers) {
    model.experts_per_layer = std::max(model.experts_per_layer, layer.moe.experts);
    model.experts_per_token = std::max(model.experts_per_token, layer.moe.top_k);
  }
  model.context = context;
  model.max_position = config.max_position;
  if (!config.bos_ids.empty()) {
    model.bos = config.bos_ids.front();
  }
  model.eos = config.eos_ids;
  model.generation = pack.generation();
  model.has_chat_template = !pack.chat_template().empty();
  model.expert_bytes = pack.total_expert_bytes();
  model.dense_bytes = pack.dense_bytes();
  return model;
}

std::vector<std::string> LinkedLibraries() {
  return {absl::StrCat("gRPC ", grpc::Version()),
          absl::StrCat("protobuf ", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION)),
          absl::StrCat("spdlog ", SPDLOG_VER_MAJOR, ".", SPDLOG_VER_MINOR, ".", SPDLOG_VER_PATCH)};
}

const char* IsaName() {
  return CpuIsaSupported(CpuIsa::kAvx512)     ? "avx512"
         : CpuIsaSupported(CpuIsa::kAvx2Vnni) ? "avx2vnni"
                                              : "avx2";
}

}  // namespace sluice::inferd
