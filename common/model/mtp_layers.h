// Multi-token prediction (MTP) layers of a checkpoint: which it has, as layers of the description behind the
// model's own, and under which names their tensors are.
//
// Step p of an MTP layer takes the hidden state h behind the final norm at p and token t(p+1): its input is
// eh_proj [enorm(embedding of t); hnorm(h)], then a decoder layer of the family and a norm; the model's head
// on its output h' predicts t(p+2). A further layer takes h' and the token behind (DeepSeek-V3, arXiv
// 2412.19437, section 2.2; names as in vLLM's and SGLang's MTP models).
//
// Private to common/model but for AddMtpLayers. Thread safety: free functions; a TensorMapper is used by one
// thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"
#include "common/model/tensor_mapper.h"

namespace sluice {

// Appends the MTP layers that `checkpoint` has to `config`, which has none. Layers whose tensors are not as
// expected are left out, and so are all if they have an embedding or a head of their own: `*why` says so, and
// is empty otherwise. Errors are those of reading the checkpoint.
absl::Status AddMtpLayers(const Checkpoint& checkpoint, ModelConfig* config, std::string* why);

// Returns the start of the tensor names of layer `layer`: `prefix` and its number, or those of an MTP layer.
std::string LayerBase(const ModelConfig& config, const std::string& prefix, uint32_t layer);

// Maps the tensors that an MTP layer has beside those of its decoder layer, and ignores its copies of
// embedding and head. No effect on other layers.
void MapMtpTensors(const ModelConfig& config, const std::string& prefix, uint32_t layer,
                   TensorMapper* mapper);

}  // namespace sluice
