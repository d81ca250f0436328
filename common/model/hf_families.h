// The families: the config reader of each, and the tensor names of its checkpoints. Rows of the tables in
// hf_config.cc.
//
// A reader asks `fields` for every member that matters; the caller checks fields->Finish(). A mapper names
// every tensor of the checkpoint; the caller checks mapper->Finish().
//
// Private to common/model. Thread safety: free functions, safe to call from any thread.
#pragma once

#include "common/model/hf_fields.h"
#include "common/model/model_config.h"
#include "common/model/tensor_mapper.h"

namespace sluice {

ModelConfig ReadMixtral(HfFields* fields);
void MapMixtral(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadQwen2Moe(HfFields* fields);
ModelConfig ReadQwen3Moe(HfFields* fields);
void MapQwenMoe(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadOlmoe(HfFields* fields);
void MapOlmoe(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadGraniteMoe(HfFields* fields);
void MapGraniteMoe(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadGlm4Moe(HfFields* fields);
void MapGlm4Moe(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadDeepseek(HfFields* fields);
ModelConfig ReadDeepseekV2(HfFields* fields);
ModelConfig ReadDeepseekV3(HfFields* fields);
void MapDeepseek(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadMinimaxM2(HfFields* fields);
void MapMinimaxM2(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadPhimoe(HfFields* fields);
void MapPhimoe(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadGptOss(HfFields* fields);
void MapGptOss(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadLlama4(HfFields* fields);
void MapLlama4(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadQwen35Moe(HfFields* fields);
void MapQwen35Moe(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadDeepseekV32(HfFields* fields);
ModelConfig ReadGlmMoeDsa(HfFields* fields);
ModelConfig ReadMistral4(HfFields* fields);

ModelConfig ReadGlm4MoeLite(HfFields* fields);
ModelConfig ReadDots1(HfFields* fields);

ModelConfig ReadQwen3VlMoe(HfFields* fields);
void MapQwen3VlMoe(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadQwen3Next(HfFields* fields);

ModelConfig ReadErnie45Moe(HfFields* fields);
void MapErnie45Moe(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadHunyuanV1Moe(HfFields* fields);
void MapHunyuanV1Moe(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadAfmoe(HfFields* fields);
void MapAfmoe(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadGemma4(HfFields* fields);
void MapGemma4(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadGraniteMoeHybrid(HfFields* fields);
void MapGraniteMoeHybrid(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadLfm2Moe(HfFields* fields);
void MapLfm2Moe(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadNemotronH(HfFields* fields);
void MapNemotronH(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadMinimaxM3(HfFields* fields);
void MapMinimaxM3(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadHyV3(HfFields* fields);
void MapHyV3(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadSolarOpen(HfFields* fields);

ModelConfig ReadExaoneMoe(HfFields* fields);
void MapExaoneMoe(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadMellum(HfFields* fields);
void MapMellum(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadLaguna(HfFields* fields);
void MapLaguna(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadStep3p5(HfFields* fields);
void MapStep3p5(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadMimoV2Flash(HfFields* fields);
void MapMimoV2Flash(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadCohere2Moe(HfFields* fields);
void MapCohere2Moe(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadFlexOlmo(HfFields* fields);
void MapFlexOlmo(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadLongcatFlash(HfFields* fields);
void MapLongcatFlash(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadJamba(HfFields* fields);
void MapJamba(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadKimiLinear(HfFields* fields);
void MapKimiLinear(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadBailingHybrid(HfFields* fields);
void MapBailingHybrid(const ModelConfig& config, TensorMapper* mapper);

ModelConfig ReadXverse(HfFields* fields);
void MapXverse(const ModelConfig& config, TensorMapper* mapper);

// hf_families_streams.cc
ModelConfig ReadGlm5Next(HfFields* fields);
void MapGlm5Next(const ModelConfig& config, TensorMapper* mapper);
ModelConfig ReadDeepseekV4(HfFields* fields);
void MapDeepseekV4(const ModelConfig& config, TensorMapper* mapper);

// hf_families_ngrams.cc
ModelConfig ReadQwen4Exp(HfFields* fields);
void MapQwen4Exp(const ModelConfig& config, TensorMapper* mapper);

}  // namespace sluice
