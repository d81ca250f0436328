#include "tests/cuda_fake/interp/execution.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace sluice::cuda_fake {

Execution::Execution(const LaunchSpec& spec) : spec_(spec), program_(*spec.program), random_(spec.seed) {}

Fault Execution::Run() {
  std::vector<uint64_t> order(spec_.grid.Count());
  std::iota(order.begin(), order.end(), uint64_t{0});
  if (spec_.seed == 1) {
    std::reverse(order.begin(), order.end());
  } else if (spec_.seed > 1) {
    std::shuffle(order.begin(), order.end(), random_);
  }
  for (const uint64_t index : order) {
    BeginBlock(index);
    RunBlock();
    if (fault_ != Fault::kNone) {
      break;
    }
  }
  requests_.EndLaunch(&counts_);
  return fault_;
}

void Execution::BeginBlock(uint64_t index) {
  block_index_ = static_cast<uint32_t>(index);
  block_id_ = {static_cast<uint32_t>(index % spec_.grid.x),
               static_cast<uint32_t>(index / spec_.grid.x % spec_.grid.y),
               static_cast<uint32_t>(index / spec_.grid.x / spec_.grid.y)};
  epoch_ = 0;
  steps_ = 0;
  const uint64_t shared_bytes = program_.shared_end + spec_.dynamic_shared;
  shared_.assign(shared_bytes, 0xCB);
  shared_valid_.assign(shared_bytes, 0);
  for (const Place& place : program_.shared) {
    std::fill_n(shared_valid_.begin() + static_cast<int64_t>(place.offset), place.bytes, 1);
  }
  std::fill_n(shared_valid_.begin() + static_cast<int64_t>(program_.shared_end), spec_.dynamic_shared, 1);
  shared_shadow_ = std::make_unique<Shadow>(shared_bytes);
  warps_.clear();
  const uint32_t threads = static_cast<uint32_t>(spec_.block.Count());
  for (uint32_t first = 0; first < threads; first += kWarpLanes) {
    warps_.push_back(std::make_unique<Warp>(program_, first / kWarpLanes,
                                            std::min<uint32_t>(kWarpLanes, threads - first)));
    FillSpecials(warps_.back().get());
  }
}

void Execution::FillSpecials(Warp* warp) {
  const auto value = [&](Special special, uint32_t lane) -> uint32_t {
    const uint32_t thread = warp->index * kWarpLanes + lane;
    switch (special) {
      case Special::kTidX:
        return thread % spec_.block.x;
      case Special::kTidY:
        return thread / spec_.block.x % spec_.block.y;
      case Special::kTidZ:
        return thread / spec_.block.x / spec_.block.y;
      case Special::kNtidX:
        return spec_.block.x;
      case Special::kNtidY:
        return spec_.block.y;
      case Special::kNtidZ:
        return spec_.block.z;
      case Special::kCtaidX:
        return block_id_.x;
      case Special::kCtaidY:
        return block_id_.y;
      case Special::kCtaidZ:
        return block_id_.z;
      case Special::kNctaidX:
        return spec_.grid.x;
      case Special::kNctaidY:
        return spec_.grid.y;
      case Special::kNctaidZ:
        return spec_.grid.z;
      case Special::kLaneid:
        return lane;
      case Special::kWarpid:
        return warp->index;
      case Special::kLanemaskLt:
        return (1u << lane) - 1;
      case Special::kLanemaskLe:
        return (2u << lane) - 1;
      case Special::kLanemaskEq:
        return 1u << lane;
      case Special::kLanemaskGe:
        return ~((1u << lane) - 1);
      case Special::kLanemaskGt:
        return ~((2u << lane) - 1);
    }
    return 0;
  };
  for (const SpecialRow& row : program_.specials) {
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
      warp->Row<uint32_t>(row.row)[lane] = value(row.special, lane);
    }
  }
}

Warp* Execution::NextWarp() {
  std::vector<Warp*> ready;
  for (const auto& warp : warps_) {
    if (warp->Lowest() != nullptr) {
      ready.push_back(warp.get());
    }
  }
  if (ready.empty()) {
    return nullptr;
  }
  return spec_.seed == 0 ? ready.front() : spec_.seed == 1 ? ready.back() : ready[random_() % ready.size()];
}

void Execution::RunBlock() {
  while (fault_ == Fault::kNone) {
    Warp* const warp = NextWarp();
    if (warp != nullptr) {
      RunWarp(*warp, spec_.seed < 2 ? ~uint64_t{0} : 1 + random_() % 256);
    } else if (std::all_of(warps_.begin(), warps_.end(), [](const auto& w) { return w->live == 0; })) {
      return;
    } else if (!ReleaseBarrier()) {
      ReportStuck();
      return;
    }
    if (steps_ > spec_.step_limit) {
      spec_.reports->Add(Finding::kNoEnd, program_.name,
                         absl::StrCat(program_.name, ": block ", block_index_, " has not ended after ",
                                      steps_, " warp-instructions"));
      fault_ = Fault::kLaunchFailure;
    }
  }
}

void Execution::RunWarp(Warp& warp, uint64_t steps) {
  const Instruction* const code = program_.code.data();
  uint64_t done = 0;
  for (; done < steps; ++done) {
    Warp::Group* const group = warp.Lowest();
    if (group == nullptr || fault_ != Fault::kNone || steps_ + done > spec_.step_limit) {
      break;
    }
    warp.current = group;
    const Instruction& in = code[group->pc];
    uint32_t mask = group->mask;
    if (in.guard != kNoRow) {
      mask &= in.guard_negated ? ~warp.Mask(in.guard) : warp.Mask(in.guard);
      if (mask == 0) {
        ++group->pc;
        continue;
      }
    }
    switch (in.run(*this, warp, in, mask)) {
      case Outcome::kNext:
        ++warp.current->pc;
        break;
      case Outcome::kJumped:
      case Outcome::kStop:
        break;
    }
    if (spec_.counts) {
      const std::vector<std::string>& words = in.statement->words;
      if (words[0] == "cp" && words.size() > 2 && words[2] != "shared" && words[2] != "ca" &&
          words[2] != "cg") {
        requests_.Drop();  // copies that land were counted when they were issued
      }
      requests_.EndRequest(&counts_);
    }
  }
  steps_ += done;
  counts_.warp_instructions += done;
}

// "For each thread in the block, all of them must execute the same __syncthreads(), conditional code
// included, else the code execution is likely to hang or produce unintended side effects" (Programming Guide,
// Synchronization Functions): so threads that have ended before, and lanes of a warp at different barriers,
// are reported.
bool Execution::ReleaseBarrier() {
  const Instruction* barrier = nullptr;
  uint32_t ended = 0;
  for (const auto& warp : warps_) {
    ended += static_cast<uint32_t>(__builtin_popcount(warp->existing & ~warp->live));
    for (const Warp::Group& group : warp->groups) {
      const Instruction& in = program_.code[group.pc];
      if (in.statement->words[0] != "bar" && in.statement->words[0] != "barrier") {
        return false;
      }
      if (in.statement->words[1] == "warp") {
        return false;
      }
      if (group.mask != warp->live) {
        ReportAt(Finding::kBarrier, in, "lanes of one warp are at different barriers");
        fault_ = Fault::kLaunchFailure;
        return true;
      }
      barrier = &in;
    }
  }
  if (ended != 0) {
    ReportAt(Finding::kBarrier, *barrier,
             absl::StrCat(ended, " threads of the block have ended without reaching it"));
  }
  for (const auto& warp : warps_) {
    for (Warp::Group& group : warp->groups) {
      group.waiting = false;
      ++group.pc;
    }
  }
  ++epoch_;
  return true;
}

// Lanes that a warp instruction waits for in vain are the cause; that others wait at a barrier follows from
// it.
void Execution::ReportStuck() {
  fault_ = Fault::kLaunchFailure;
  const Instruction* barrier = nullptr;
  bool named = false;
  for (const auto& warp : warps_) {
    for (const Warp::Group& group : warp->groups) {
      const Instruction& in = program_.code[group.pc];
      if (in.statement->words[0] == "bar" && in.statement->words[1] != "warp") {
        barrier = &in;
        continue;
      }
      named = true;
      ReportAt(Finding::kMask, in,
               absl::StrCat("lanes ", absl::Hex(group.mask), " of warp ", warp->index,
                            " wait for lanes of the mask that do not come: the block is stuck"));
    }
  }
  if (!named) {
    ReportAt(Finding::kBarrier, *barrier,
             "threads wait here for others that wait elsewhere: the block is stuck");
  }
}

void Execution::ReportAt(Finding finding, const Instruction& in, absl::string_view text) {
  spec_.reports->Add(finding, absl::StrCat(program_.name, ":", in.statement->line),
                     absl::StrCat(program_.name, ", ", program_.Where(in), ": ", text));
}

Outcome Execution::Stop(Fault fault, Finding finding, const Instruction& in, absl::string_view text) {
  ReportAt(finding, in, text);
  fault_ = fault;
  return Outcome::kStop;
}

std::string Execution::Thread(const Warp& warp, int lane) const {
  return absl::StrCat("thread ", warp.index * kWarpLanes + static_cast<uint32_t>(lane), " of block ",
                      block_index_);
}

Accessor Execution::Who(const Warp& warp, int lane) const {
  return {spec_.operation, block_index_,
          static_cast<uint16_t>(warp.index * kWarpLanes + static_cast<uint32_t>(lane)), epoch_, warp.sync};
}

}  // namespace sluice::cuda_fake
