#include "cli/measure/quality/bytes_per_token.h"

#include "common/model/dense_names.h"
#include "pack/row_layout.h"

namespace sluice::cli {
namespace {

// Returns true if every row of `part` is read, regardless of the mask.
bool ReadWhole(Part part, const std::string& order) {
  if (order == "up") {
    return part == Part::kUp;
  }
  if (order == "gate") {
    return part == Part::kGate;
  }
  return order != "product" || part != Part::kDown;
}

double ExpertBytes(const Pack& pack, uint32_t layer, uint32_t expert, const std::string& order,
                   double left_out) {
  double bytes = 0;
  for (const Part part : {Part::kUp, Part::kGate, Part::kDown}) {
    const PartView view = pack.part(layer, expert, part);
    const double whole =
        static_cast<double>(view.rows) * static_cast<double>(RowBytes(view.encoding, view.cols));
    bytes += ReadWhole(part, order) ? whole : whole * (1 - left_out);
  }
  return bytes;
}

}  // namespace

double BytesPerToken(const Pack& pack, const std::string& order, const std::vector<double>& left_out) {
  double bytes = 0;
  for (const DenseTensor& tensor : pack.dense_tensors()) {
    const bool one_row = tensor.name == dense::kEmbed && !pack.config().tied_embeddings;
    bytes += static_cast<double>(RowBytes(tensor.encoding, tensor.cols)) * (one_row ? 1 : tensor.rows);
  }
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    const uint32_t experts = pack.expert_count(layer);
    double sum = 0;
    for (uint32_t expert = 0; expert < experts; ++expert) {
      sum += ExpertBytes(pack, layer, expert, order, layer < left_out.size() ? left_out[layer] : 0);
    }
    bytes += experts == 0 ? 0 : sum / experts * pack.config().layers[layer].moe.top_k;
  }
  return bytes;
}

double ExpertBitsPerWeight(const Pack& pack) {
  double bytes = 0;
  double weights = 0;
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < pack.expert_count(layer); ++expert) {
      bytes += ExpertBytes(pack, layer, expert, "none", 0);
      for (const Part part : {Part::kUp, Part::kGate, Part::kDown}) {
        const PartView view = pack.part(layer, expert, part);
        weights += static_cast<double>(view.rows) * view.cols;
      }
    }
  }
  return weights > 0 ? 8 * bytes / weights : 0;
}

}  // namespace sluice::cli
