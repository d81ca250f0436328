// TestPack: a small Mixtral pack of random weights in a folder of its own, and the expected bytes of its
// extents.
//
// Thread safety: immutable after construction; const methods may be called from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "inferd/model/weight_client.h"
#include "pack/pack.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace sluice {

class TestPack {
 public:
  // Fails the test and leaves pack() null if it cannot be made.
  explicit TestPack(const TinyModelSpec& spec);
  // 4 layers of 8 experts; an expert has 3 extents of 8 KiB.
  explicit TestPack(uint64_t seed = 1);

  const std::string& dir() const { return dir_; }
  const Pack& pack() const { return *pack_; }
  // The bytes of an extent as they are on disk, read without weightd's code.
  const std::vector<std::byte>& extent(uint32_t extent) const { return extents_[extent]; }
  // True if a lease shows exactly these bytes.
  bool Matches(uint32_t extent, const inferd::ExtentLease& lease) const;

  // Flips one bit of an extent on disk; extent() keeps the old bytes.
  void Damage(uint32_t extent) const;

 private:
  TempDir folder_;
  std::string dir_;
  std::unique_ptr<Pack> pack_;
  std::vector<std::vector<std::byte>> extents_;
};

}  // namespace sluice
