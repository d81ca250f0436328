#include "tests/cuda_fake/interp/execution.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace sluice::cuda_fake {

Execution::Execution(const LaunchSpec& spec) : spec_(spec), program_(*spec.program), random_(spec.seed) {
  if (spec_.scope.phases == nullptr) {
    const Phase first = own_phases_.Begin(1);
    spec_.scope = {1, first, first, first, first, &own_phases_, nullptr};
  }
  if (spec_.buffers == nullptr) {
    own_buffers_ = std::make_unique<ExecutionBuffers>();
  }
  buffers_ = spec_.buffers == nullptr ? own_buffers_.get() : spec_.buffers;
}

Execution::~Execution() = default;

Fault Execution::Run() {
  std::vector<uint64_t> order(spec_.grid.Count());
  std::iota(order.begin(), order.end(), uint64_t{0});
  if (spec_.seed == 1) {
    std::reverse(order.begin(), order.end());
  } else if (spec_.seed > 1) {
    std::shuffle(order.begin(), order.end(), random_);
  }
  BeginLaunch();
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

void Execution::BeginLaunch() {
  global_ = spec_.scope;
  shared_bytes_ = program_.shared_end + spec_.dynamic_shared;
  buffers_->shared.resize(shared_bytes_);
  shared_ = buffers_->shared.data();
  // Entries that earlier launches left in the shadow belong to phases that no block of this launch reads.
  if (buffers_->shadow == nullptr || buffers_->shadow->bytes() < shared_bytes_) {
    buffers_->shadow = std::make_unique<Shadow>(shared_bytes_);
  }
  shared_shadow_ = buffers_->shadow.get();
  shared_shadow_->BeginParts(shared_bytes_);
  for (const Place& place : program_.shared) {
    shared_shadow_->AddPart(place.offset, place.bytes);
  }
  shared_shadow_->AddPart(program_.shared_end, spec_.dynamic_shared);
  const auto threads = static_cast<uint32_t>(spec_.block.Count());
  buffers_->warp_count = (threads + kWarpLanes - 1) / kWarpLanes;
  while (buffers_->warps.size() < buffers_->warp_count) {
    buffers_->warps.push_back(std::make_unique<Warp>());
  }
  for (uint32_t i = 0; i < buffers_->warp_count; ++i) {
    buffers_->warps[i]->BeginLaunch(program_, i, std::min<uint32_t>(kWarpLanes, threads - i * kWarpLanes));
    FillSpecials(buffers_->warps[i].get(), false);
  }
}

void Execution::BeginBlock(uint64_t index) {
  block_index_ = static_cast<uint32_t>(index);
  block_id_ = {static_cast<uint32_t>(index % spec_.grid.x),
               static_cast<uint32_t>(index / spec_.grid.x % spec_.grid.y),
               static_cast<uint32_t>(index / spec_.grid.x / spec_.grid.y)};
  steps_ = 0;
  global_.phase = global_.block = global_.phases->Next();
  // The shared memory of other blocks is gone.
  shared_scope_ = global_;
  shared_scope_.launch = shared_scope_.safe = global_.block;
  std::memset(shared_, 0xCB, shared_bytes_);
  shared_shadow_->Clear();
  for (size_t i = 0; i < buffers_->warp_count; ++i) {
    buffers_->warps[i]->BeginBlock();
    FillSpecials(buffers_->warps[i].get(), true);
  }
}

uint32_t Execution::SpecialValue(Special special, const Warp& warp, uint32_t lane) const {
  const uint32_t thread = warp.index * kWarpLanes + lane;
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
      return warp.index;
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
}

void Execution::FillSpecials(Warp* warp, bool of_block) {
  for (const SpecialRow& row : program_.specials) {
    const bool names_block =
        row.special == Special::kCtaidX || row.special == Special::kCtaidY || row.special == Special::kCtaidZ;
    if (names_block != of_block) {
      continue;
    }
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
      warp->Row<uint32_t>(row.row)[lane] = SpecialValue(row.special, *warp, lane);
    }
  }
}

Warp* Execution::NextWarp() {
  const size_t count = buffers_->warp_count;
  const auto ready = [&](size_t i) { return buffers_->warps[i]->Lowest() != nullptr; };
  if (spec_.seed < 2) {
    for (size_t i = 0; i < count; ++i) {
      const size_t at = spec_.seed == 0 ? i : count - 1 - i;
      if (ready(at)) {
        return buffers_->warps[at].get();
      }
    }
    return nullptr;
  }
  Warp* list[kWarpLanes];  // at most 1024 threads
  size_t found = 0;
  for (size_t i = 0; i < count; ++i) {
    if (ready(i)) {
      list[found++] = buffers_->warps[i].get();
    }
  }
  return found == 0 ? nullptr : list[random_() % found];
}

std::vector<Warp*> Execution::BlockWarps() const {
  std::vector<Warp*> warps;
  for (size_t i = 0; i < buffers_->warp_count; ++i) {
    warps.push_back(buffers_->warps[i].get());
  }
  return warps;
}

void Execution::RunBlock() {
  while (fault_ == Fault::kNone) {
    Warp* const warp = NextWarp();
    if (warp != nullptr) {
      RunWarp(*warp, spec_.seed < 2 ? ~uint64_t{0} : 1 + random_() % 256);
    } else if (std::all_of(buffers_->warps.begin(),
                           buffers_->warps.begin() + static_cast<int64_t>(buffers_->warp_count),
                           [](const auto& w) { return w->live == 0; })) {
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

// The group with the lowest place runs until it comes to where another one is, or groups change.
void Execution::RunWarp(Warp& warp, uint64_t steps) {
  const Instruction* const code = program_.code.data();
  const uint64_t most = std::min(steps, spec_.step_limit + 1 - std::min(steps_, spec_.step_limit + 1));
  uint64_t done = 0;
  while (done < most && fault_ == Fault::kNone) {
    Warp::Group* const group = warp.Lowest();
    if (group == nullptr) {
      break;
    }
    warp.current = group;
    const uint32_t end = warp.NextPlace(*group);
    for (bool together = true; together && done < most && group->pc < end; ++done) {
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
          // A warp instruction may have gathered lanes, and so moved the group.
          ++warp.current->pc;
          together = warp.current == group;
          break;
        case Outcome::kBranched:
          break;
        case Outcome::kJumped:
        case Outcome::kStop:
          together = false;
          break;
      }
      if (spec_.counts) {
        CountRequest(in);
      }
    }
  }
  steps_ += done;
  counts_.warp_instructions += done;
}

void Execution::CountRequest(const Instruction& in) {
  const std::vector<std::string>& words = in.statement->words;
  if (words[0] == "cp" && words.size() > 2 && words[2] != "shared" && words[2] != "ca" && words[2] != "cg") {
    requests_.Drop();  // copies that land were counted when they were issued
  }
  requests_.EndRequest(&counts_);
}

// "For each thread in the block, all of them must execute the same __syncthreads(), conditional code
// included, else the code execution is likely to hang or produce unintended side effects" (Programming Guide,
// Synchronization Functions): so threads that have ended before, and lanes of a warp at different barriers,
// are reported.
bool Execution::ReleaseBarrier() {
  const Instruction* barrier = nullptr;
  uint32_t ended = 0;
  for (Warp* const warp : BlockWarps()) {
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
  for (Warp* const warp : BlockWarps()) {
    for (Warp::Group& group : warp->groups) {
      group.waiting = false;
      ++group.pc;
    }
  }
  global_.phase = shared_scope_.phase = global_.phases->Next();
  return true;
}

// Lanes that a warp instruction waits for in vain are the cause; that others wait at a barrier follows from
// it.
void Execution::ReportStuck() {
  fault_ = Fault::kLaunchFailure;
  const Instruction* barrier = nullptr;
  bool named = false;
  for (Warp* const warp : BlockWarps()) {
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

}  // namespace sluice::cuda_fake
