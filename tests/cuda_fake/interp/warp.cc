#include "tests/cuda_fake/interp/warp.h"

#include <algorithm>
#include <cstring>

namespace sluice::cuda_fake {
namespace {

// Value of registers before they are written: a quiet NaN as a float, a wild number as an address.
constexpr uint8_t kRegisterPoison = 0xff;

void Fill(Warp* warp, const ConstantRow& constant) {
  if (constant.bytes == 0) {
    warp->Mask(constant.row) = constant.value != 0 ? kFullMask : 0;
    return;
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    std::memcpy(warp->Row<uint8_t>(constant.row) + lane * constant.bytes, &constant.value, constant.bytes);
  }
}

}  // namespace

void Warp::BeginLaunch(const Program& program, uint32_t number, uint32_t lanes) {
  index = number;
  existing = lanes == kWarpLanes ? kFullMask : (1u << lanes) - 1;
  storage_.assign(program.file_bytes + 64, kRegisterPoison);
  file_ = storage_.data() + (64 - reinterpret_cast<uintptr_t>(storage_.data()) % 64) % 64;
  for (const ConstantRow& constant : program.constants) {
    Fill(this, constant);
  }
}

void Warp::BeginBlock() {
  live = existing;
  sync = 0;
  current = nullptr;
  groups.assign(1, {0, existing, false});
  copies.clear();
  local.clear();
  local_written.clear();
}

Warp::Group* Warp::Lowest() {
  if (groups.size() == 1) {
    return groups[0].waiting ? nullptr : groups.data();
  }
  Group* lowest = nullptr;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].waiting) {
      continue;
    }
    if (lowest == nullptr || groups[i].pc < lowest->pc) {
      lowest = &groups[i];
    } else if (groups[i].pc == lowest->pc) {
      lowest->mask |= groups[i].mask;
      groups[i] = groups.back();
      groups.pop_back();
      --i;
    }
  }
  return lowest;
}

uint32_t Warp::NextPlace(const Group& group) const {
  uint32_t next = UINT32_MAX;
  for (const Group& other : groups) {
    next = &other == &group || other.waiting ? next : std::min(next, other.pc);
  }
  return next;
}

void Warp::Branch(Group* group, uint32_t taken, uint32_t target) {
  if (taken == group->mask) {
    group->pc = target;
    return;
  }
  group->mask &= ~taken;
  ++group->pc;
  if (taken != 0) {
    groups.push_back({target, taken, false});
  }
}

void Warp::Exit(Group* group, uint32_t lanes) {
  live &= ~lanes;
  group->mask &= ~lanes;
  ++group->pc;
  if (group->mask == 0) {
    *group = groups.back();
    groups.pop_back();
  }
}

void Warp::Wait(Group* group, uint32_t mask) {
  const Group others{group->pc + 1, group->mask & ~mask, false};
  group->waiting = true;
  group->mask = mask;
  if (others.mask != 0) {
    groups.push_back(others);
  }
}

Warp::Group* Warp::WaitingAt(uint32_t pc) {
  for (Group& group : groups) {
    if (group.waiting && group.pc == pc) {
      return &group;
    }
  }
  return nullptr;
}

}  // namespace sluice::cuda_fake
