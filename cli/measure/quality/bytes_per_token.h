// Bytes of weights that a generated token reads: the x-axis of every quality plot.
//
// Thread safety: a pure function.
#pragma once

#include <string>
#include <vector>

#include "pack/pack.h"

namespace sluice::cli {

// Encoded bytes: all dense tensors (of an embedding that is not the head only a row), and per layer top-k
// experts of mean size. `order` is the sparsity's (none, up, gate, product) and `left_out` each layer's share
// of neurons left out: the lead parts are read whole, of the others only the rows that count.
double BytesPerToken(const Pack& pack, const std::string& order, const std::vector<double>& left_out);

// Bits per weight of the routed experts, scales and zeros included; 0 if there are none.
double ExpertBitsPerWeight(const Pack& pack);

}  // namespace sluice::cli
