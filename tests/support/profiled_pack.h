// A tiny pack with a profile, for tests of presets that need one.
//
// Thread safety: a free function.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "tests/support/calibration_sink.h"
#include "tests/support/engine_testing.h"

namespace sluice {

// Makes the pack `pack` of random weights, by way of the folder `work`, and calibrates it.
inline absl::Status MakeProfiledPack(uint32_t layers, const std::string& work, const std::string& pack) {
  TinyModelSpec spec;
  spec.vocab = 40;
  spec.layers = layers;
  spec.experts = 8;
  spec.top_k = 2;
  spec.width = 64;
  RETURN_IF_ERROR(PackTiny(spec, work, pack));
  inferd::CalibrationSpec calibration;
  calibration.window = 16;
  for (int i = 0; i < 100; ++i) calibration.tokens.push_back((7 * i * i + 3 * i) % 40);
  calibration.sensitivity_tokens = 40;
  calibration.epochs = 1;
  calibration.sparsity_tokens = 30;
  calibration.quality_bounds = {0.01, 1000};
  ASSIGN_OR_RETURN(const auto engine, StartEngine(pack, {.threads = 1}));
  auto sink = std::make_shared<CollectingCalibrationSink>();
  RETURN_IF_ERROR(engine.engine->Calibrate(calibration, sink));
  return sink->Await();
}

}  // namespace sluice
