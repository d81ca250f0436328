#include "inferd/model/dense_shapes.h"

#include <algorithm>
#include <string_view>

#include "common/base/encoding.h"
#include "common/model/dense_names.h"

namespace sluice::inferd {
namespace {

// Beginnings of names of tensors that choose, mix streams or decay: few rows, stored as the router's.
constexpr std::string_view kChoosing[] = {
    dense::kRouter, dense::kHeadStreams, dense::kAttnStreams, dense::kFfnStreams, "entry_",
    "index_",       dense::kDeltaBeta,   dense::kDeltaDecay,  dense::kMambaDt};

bool Chooses(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return std::any_of(std::begin(kChoosing), std::end(kChoosing),
                     [&](std::string_view begin) { return last.starts_with(begin); });
}

}  // namespace

std::vector<DenseShape> DenseShapesOf(const Pack& pack) {
  std::vector<DenseShape> shapes;
  std::vector<DenseShape> exact;
  for (const DenseTensor& tensor : pack.dense_tensors()) {
    const bool table = tensor.name == dense::kEmbed && !pack.config().tied_embeddings;
    if (table || tensor.rows <= 1 || tensor.encoding.encoding == Encoding::kF32) {
      continue;
    }
    const DenseShape shape = {tensor.encoding, tensor.rows, tensor.cols};
    std::vector<DenseShape>& list = Chooses(tensor.name) ? exact : shapes;
    if (std::find(list.begin(), list.end(), shape) == list.end()) {
      list.push_back(shape);
    }
  }
  std::erase_if(shapes, [&](const DenseShape& shape) {
    return std::find(exact.begin(), exact.end(), shape) != exact.end();
  });
  return shapes;
}

}  // namespace sluice::inferd
