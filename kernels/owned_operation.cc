#include "kernels/owned_operation.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace sluice {

std::byte* OwnedOperation::Room(size_t bytes) {
  constexpr size_t kAlign = alignof(std::max_align_t);
  constexpr size_t kFirstBlock = 4096;
  bytes = (bytes + kAlign - 1) / kAlign * kAlign;
  if (blocks_.empty() || used_ + bytes > blocks_.back().size) {
    const size_t size = std::max(bytes, blocks_.empty() ? kFirstBlock : 2 * blocks_.back().size);
    blocks_.push_back({std::make_unique<std::byte[]>(size), size});
    used_ = 0;
  }
  std::byte* const room = blocks_.back().bytes.get() + used_;
  used_ += bytes;
  return room;
}

template <class T>
absl::Span<T> OwnedOperation::Copy(absl::Span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= alignof(std::max_align_t));
  if (values.empty()) {
    return {};
  }
  T* copy = reinterpret_cast<T*>(Room(values.size() * sizeof(T)));
  std::memcpy(static_cast<void*>(copy), values.data(), values.size() * sizeof(T));
  return {copy, values.size()};
}

void OwnedOperation::Keep(const Operation& operation) {
  if (blocks_.size() > 1) {
    blocks_.erase(blocks_.begin(), blocks_.end() - 1);
  }
  used_ = 0;
  std::visit(
      [this](const auto* args) {
        auto& kept = args_.emplace<std::remove_cvref_t<decltype(*args)>>(*args);
        KeepLists(kept);
      },
      operation);
}

Operation OwnedOperation::get() const {
  return std::visit(
      [](const auto& args) -> Operation {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(args)>, std::monostate>) {
          return static_cast<const EmbedArgs*>(nullptr);  // never: the constructor puts something there
        } else {
          return &args;
        }
      },
      args_);
}

const char* OwnedOperation::name() const {
  return std::visit([](const auto* args) { return NameOf(*args); }, get());
}

absl::Span<const SequenceRows> OwnedOperation::KeepSequences(absl::Span<const SequenceRows> sequences) {
  const absl::Span<SequenceRows> copy = Copy(sequences);
  for (SequenceRows& sequence : copy) {
    sequence.pages = KeepList(sequence.pages);
  }
  return copy;
}

absl::Span<const ExpertWork> OwnedOperation::KeepExperts(absl::Span<const ExpertWork> experts) {
  const absl::Span<ExpertWork> copy = Copy(experts);
  for (ExpertWork& work : copy) {
    work.rows = KeepList(work.rows);
    work.slots = KeepList(work.slots);
    for (WeightView* part : {&work.up, &work.gate, &work.down}) {
      part->positions = KeepList(part->positions);
    }
  }
  return copy;
}

absl::Span<const LeadWork> OwnedOperation::KeepLeads(absl::Span<const LeadWork> leads) {
  const absl::Span<LeadWork> copy = Copy(leads);
  for (LeadWork& work : copy) {
    work.rows = KeepList(work.rows);
  }
  return copy;
}

void OwnedOperation::KeepLists(MatMulArgs& args) {
  args.row_ids = KeepList(args.row_ids);
  args.parts = KeepList(args.parts);
}

}  // namespace sluice
