#include "tests/support/test_pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "pack/writer/pack_writer.h"

namespace sluice {

namespace {

TinyModelSpec ManyExperts(uint64_t seed) {
  TinyModelSpec spec;
  spec.hidden = 64;
  spec.layers = 4;
  spec.experts = 8;
  spec.width = 64;
  spec.seed = seed;
  return spec;
}

}  // namespace

TestPack::TestPack(uint64_t seed) : TestPack(ManyExperts(seed)) {}

TestPack::TestPack(const TinyModelSpec& spec) : dir_(folder_.File("pack")) {
  EXPECT_TRUE(WriteTinyModel(spec, folder_.File("model")).ok());
  PackOptions options;
  options.threads = 1;
  const auto summary = PackModel(folder_.File("model"), dir_, options, {}, nullptr);
  EXPECT_TRUE(summary.ok()) << summary.status();
  auto pack = Pack::Open(dir_);
  EXPECT_TRUE(pack.ok()) << pack.status();
  if (!pack.ok()) {
    return;
  }
  pack_ = *std::move(pack);
  for (const ExtentEntry& entry : pack_->extents()) {
    std::vector<std::byte>& bytes = extents_.emplace_back(entry.length);
    std::ifstream file(pack_->file_path(static_cast<PackFile>(entry.file)), std::ios::binary);
    file.seekg(static_cast<std::streamoff>(entry.offset));
    file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(file.good());
  }
}

bool TestPack::Matches(uint32_t extent, const inferd::ExtentLease& lease) const {
  const std::vector<std::byte>& bytes = extents_[extent];
  return lease.bytes == bytes.size() && std::memcmp(lease.data, bytes.data(), bytes.size()) == 0;
}

void TestPack::Damage(uint32_t extent) const {
  const ExtentEntry& entry = pack_->extents()[extent];
  std::fstream file(pack_->file_path(static_cast<PackFile>(entry.file)),
                    std::ios::binary | std::ios::in | std::ios::out);
  const auto middle = static_cast<std::streamoff>(entry.offset + entry.length / 2);
  file.seekg(middle);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(middle);
  file.put(byte);
  EXPECT_TRUE(file.good());
}

}  // namespace sluice
