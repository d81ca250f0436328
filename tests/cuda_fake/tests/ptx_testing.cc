#include "tests/cuda_fake/tests/ptx_testing.h"

#include <gtest/gtest.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/cuda_fake/interp/decoder.h"
#include "tests/cuda_fake/ptx/parser.h"

namespace sluice::cuda_fake {
namespace {

class OneRegion : public RegionTable {
 public:
  OneRegion(uint8_t* bytes, uint64_t size) : shadow_(size) {
    shadow_.MarkWritten();
    region_ = {
        reinterpret_cast<uint64_t>(bytes), size, bytes, &shadow_, nullptr, true, true, "the test's data"};
  }
  const Region* Find(uint64_t address) const override {
    return address - region_.base < region_.size ? &region_ : nullptr;
  }
  std::string Near(uint64_t address) const override {
    return absl::StrCat("byte ", static_cast<int64_t>(address - region_.base), " of the test's data");
  }

 private:
  Shadow shadow_;
  Region region_;
};

constexpr char kHead[] =
    ".version 9.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry test(.param .u64 data)\n{\n"
    ".reg .pred %p<10>;\n.reg .b16 %h<10>;\n.reg .b32 %r<40>;\n.reg .b64 %x<20>;\n"
    ".shared .align 16 .b8 buffer[256];\n";

}  // namespace

PtxRun RunPtx(const std::string& body, const PtxShape& shape, std::vector<uint32_t>* data) {
  PtxRun run;
  const absl::StatusOr<Module> module = ParsePtx(absl::StrCat(kHead, body, "\nret;\n}\n"));
  if (!module.ok()) {
    run.error = std::string(module.status().message());
    return run;
  }
  const absl::StatusOr<Program> program = Decode(*module, module->kernels.find("test")->second, {});
  if (!program.ok()) {
    run.error = std::string(program.status().message());
    return run;
  }
  const OneRegion region(reinterpret_cast<uint8_t*>(data->data()), data->size() * sizeof(uint32_t));
  ReportSink reports;
  LaunchSpec spec;
  spec.program = &*program;
  spec.grid.x = shape.blocks;
  spec.block.x = shape.threads;
  spec.dynamic_shared = shape.dynamic_shared;
  spec.seed = shape.seed;
  const uint64_t address = reinterpret_cast<uint64_t>(data->data());
  spec.params.resize(8);
  std::memcpy(spec.params.data(), &address, 8);
  spec.regions = &region;
  spec.reports = &reports;
  spec.step_limit = 100'000;
  Execution execution(spec);
  run.fault = execution.Run();
  run.reports = reports.Take();
  return run;
}

std::vector<uint64_t> RunInstruction(const std::string& body, int bytes, const std::vector<Operands>& lanes) {
  // A lane's data: three operands of 8 bytes and the result.
  constexpr size_t kWords = 8;
  std::vector<uint32_t> data(kWords * lanes.size());
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    std::memcpy(&data[kWords * lane], lanes[lane].data(), sizeof(Operands));
  }
  std::string text =
      "ld.param.u64 %x10, [data];\nmov.u32 %r10, %tid.x;\nmad.wide.u32 %x11, %r10, 32, %x10;\n";
  for (int i = 0; i < 3; ++i) {
    absl::StrAppend(&text, "ld.global.u16 %h", i, ", [%x11+", 8 * i, "];\nld.global.u32 %r", i, ", [%x11+",
                    8 * i, "];\nld.global.u64 %x", i, ", [%x11+", 8 * i, "];\n");
  }
  const std::string result = bytes == 2   ? "st.global.u16 [%x11+24], %h9;"
                             : bytes == 4 ? "st.global.u32 [%x11+24], %r9;"
                                          : "st.global.u64 [%x11+24], %x9;";
  const PtxRun run =
      RunPtx(absl::StrCat(text, body, "\n", result), {.threads = static_cast<uint32_t>(lanes.size())}, &data);
  EXPECT_EQ(run.error, "") << body;
  EXPECT_TRUE(run.reports.empty()) << body;
  std::vector<uint64_t> results(lanes.size());
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    std::memcpy(&results[lane], &data[kWords * lane + 6], static_cast<size_t>(bytes));
  }
  return results;
}

}  // namespace sluice::cuda_fake
