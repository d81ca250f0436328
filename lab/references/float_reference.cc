// float_reference MODEL_DIR PACK OUT_DIR: writes the model of MODEL_DIR (Mixtral's tensor names) with the
// experts' matrices replaced by the decoded values of PACK's rows, as float32 safetensors. Packed with f32
// experts it computes with float activations what PACK computes with rounded ones, so the difference of their
// perplexities is the cost of the arithmetic of quantized rows (kernels/ARITHMETIC.md 2).
//
// Thread safety: a single-threaded program.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_io.h"
#include "common/base/status.h"
#include "common/model/safetensors.h"
#include "pack/pack.h"
#include "pack/row_codec.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

constexpr const char* kPartNames[] = {"w3", "w1", "w2"};  // up, gate, down

struct Output {
  std::string name;
  const char* type = "F32";
  std::vector<uint64_t> shape;
  std::vector<std::byte> data;
};

absl::StatusOr<Output> DecodePart(const Pack& pack, const File& file, uint32_t layer, uint32_t expert,
                                  Part part) {
  const PartView view = pack.part(layer, expert, part);
  Output out;
  out.name = absl::StrCat("model.layers.", layer, ".block_sparse_moe.experts.", expert, ".",
                          kPartNames[static_cast<int>(part)], ".weight");
  const bool transposed = part == Part::kDown && !pack.by_outputs();
  out.shape = {transposed ? view.cols : view.rows, transposed ? view.rows : view.cols};
  out.data.resize(uint64_t{view.rows} * view.cols * sizeof(float));
  auto* values = reinterpret_cast<float*>(out.data.data());
  std::vector<std::byte> row(RowBytes(view.encoding, view.cols));
  std::vector<float> decoded(view.cols);
  for (uint32_t r = 0; r < view.rows; ++r) {
    const uint64_t at = pack.extents()[view.extent].offset + view.base + uint64_t{r} * view.stride;
    RETURN_IF_ERROR(file.ReadAt(at, absl::MakeSpan(row)));
    RETURN_IF_ERROR(DecodeRow(view.encoding, row.data(), absl::MakeSpan(decoded)));
    for (uint32_t c = 0; c < view.cols; ++c) {
      values[transposed ? uint64_t{c} * view.rows + r : uint64_t{r} * view.cols + c] = decoded[c];
    }
  }
  return out;
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<Output>& tensors) {
  nlohmann::json header;
  uint64_t offset = 0;
  for (const Output& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.type},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.data.size()}}};
    offset += tensor.data.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text;
  for (const Output& tensor : tensors) {
    file.write(reinterpret_cast<const char*>(tensor.data.data()),
               static_cast<std::streamsize>(tensor.data.size()));
  }
  return file.flush().good() ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::Status Run(const std::string& model, const std::string& pack_dir, const std::string& out_dir) {
  ASSIGN_OR_RETURN(const auto source, TensorFolder::Open(model));
  ASSIGN_OR_RETURN(const auto pack, Pack::Open(pack_dir));
  if (pack->in_place())
    return absl::InvalidArgumentError(absl::StrCat(pack_dir, " is in place: pack the model"));
  ASSIGN_OR_RETURN(const File experts, File::OpenForRead(pack->file_path(PackFile::kExperts)));
  std::vector<Output> tensors;
  for (const TensorInfo& info : source->tensors()) {
    if (absl::StrContains(info.name, ".experts.")) {
      continue;
    }
    Output& copy = tensors.emplace_back(Output{info.name, ElementTypeName(info.type), info.shape, {}});
    copy.data.resize(info.bytes);
    RETURN_IF_ERROR(source->Read(info, 0, absl::MakeSpan(copy.data)));
  }
  for (uint32_t layer = 0; layer < pack->config().layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < pack->expert_count(layer); ++expert) {
      for (const Part part : {Part::kUp, Part::kGate, Part::kDown}) {
        ASSIGN_OR_RETURN(Output out, DecodePart(*pack, experts, layer, expert, part));
        tensors.push_back(std::move(out));
      }
    }
  }
  std::filesystem::create_directories(out_dir);
  for (const auto& entry : std::filesystem::directory_iterator(model)) {
    const std::string extension = entry.path().extension();
    if (extension == ".json" || extension == ".model") {
      std::filesystem::copy_file(entry.path(), std::filesystem::path(out_dir) / entry.path().filename(),
                                 std::filesystem::copy_options::overwrite_existing);
    }
  }
  return WriteSafetensors(absl::StrCat(out_dir, "/model.safetensors"), tensors);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: float_reference MODEL_DIR PACK OUT_DIR\n");
    return 2;
  }
  const absl::Status status = sluice::Run(argv[1], argv[2], argv[3]);
  if (!status.ok()) {
    std::fprintf(stderr, "float_reference: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
