#include "kernels/delayed/kept_operation.h"

#include <cstring>
#include <type_traits>

namespace sluice {

template <class T>
absl::Span<T> KeptOperation::Copy(absl::Span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= alignof(std::max_align_t));
  if (values.empty()) {
    return {};
  }
  lists_.push_back(std::make_unique<std::byte[]>(values.size() * sizeof(T)));
  T* copy = reinterpret_cast<T*>(lists_.back().get());
  std::memcpy(static_cast<void*>(copy), values.data(), values.size() * sizeof(T));
  return {copy, values.size()};
}

KeptOperation::KeptOperation(const Operation& operation) {
  std::visit(
      [this](const auto* args) {
        auto& kept = args_.emplace<std::remove_cvref_t<decltype(*args)>>(*args);
        KeepLists(kept);
      },
      operation);
}

Operation KeptOperation::get() const {
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

const char* KeptOperation::name() const {
  return std::visit([](const auto* args) { return NameOf(*args); }, get());
}

absl::Span<const SequenceRows> KeptOperation::KeepTexts(absl::Span<const SequenceRows> texts) {
  const absl::Span<SequenceRows> copy = Copy(texts);
  for (SequenceRows& text : copy) {
    text.pages = Keep(text.pages);
  }
  return copy;
}

absl::Span<const ExpertWork> KeptOperation::KeepExperts(absl::Span<const ExpertWork> experts) {
  const absl::Span<ExpertWork> copy = Copy(experts);
  for (ExpertWork& work : copy) {
    work.rows = Keep(work.rows);
    work.slots = Keep(work.slots);
    for (WeightView* part : {&work.up, &work.gate, &work.down}) {
      part->positions = Keep(part->positions);
    }
  }
  return copy;
}

absl::Span<const LeadWork> KeptOperation::KeepLeads(absl::Span<const LeadWork> leads) {
  const absl::Span<LeadWork> copy = Copy(leads);
  for (LeadWork& work : copy) {
    work.rows = Keep(work.rows);
  }
  return copy;
}

void KeptOperation::KeepLists(MatMulArgs& args) {
  args.row_ids = Keep(args.row_ids);
  args.parts = Keep(args.parts);
}

void KeptOperation::KeepLists(GatedDeltaArgs& args) {
  args.sequences = KeepTexts(args.sequences);
  args.from = Keep(args.from);
  args.to = Keep(args.to);
}

}  // namespace sluice
