// An operation that outlives the call it was given to: its arguments with copies of the host data that they
// point to.
//
// Thread safety: thread-compatible; may be handed from thread to thread.
#pragma once

#include <cstddef>
#include <memory>
#include <variant>
#include <vector>

#include "kernels/ops.h"

namespace sluice {

class KeptOperation {
 public:
  explicit KeptOperation(const Operation& operation);
  // Lives as long as this.
  Operation get() const;
  const char* name() const;

 private:
#define SLUICE_KEPT_ARGS(Name) , Name##Args
  using Args = std::variant<std::monostate SLUICE_OPERATIONS(SLUICE_KEPT_ARGS)>;
#undef SLUICE_KEPT_ARGS

  template <class T>
  absl::Span<T> Copy(absl::Span<const T> values);
  template <class T>
  absl::Span<const T> Keep(absl::Span<const T> values) {
    return Copy(values);
  }
  absl::Span<const SequenceRows> KeepTexts(absl::Span<const SequenceRows> texts);
  absl::Span<const ExpertWork> KeepExperts(absl::Span<const ExpertWork> experts);
  absl::Span<const LeadWork> KeepLeads(absl::Span<const LeadWork> leads);

  template <class T>
  void KeepLists(T& /*args*/) {}  // an operation without
  void KeepLists(EmbedArgs& args) { args.ids = Keep(args.ids); }
  void KeepLists(MatMulArgs& args);
  void KeepLists(RopeKvWriteArgs& args) { args.sequences = KeepTexts(args.sequences); }
  void KeepLists(LatentKvWriteArgs& args) { args.sequences = KeepTexts(args.sequences); }
  void KeepLists(AttentionArgs& args) { args.sequences = KeepTexts(args.sequences); }
  void KeepLists(GatedDeltaArgs& args);
  void KeepLists(ExpertLeadsArgs& args) { args.experts = KeepLeads(args.experts); }
  void KeepLists(MoeExpertsArgs& args) { args.experts = KeepExperts(args.experts); }
  void KeepLists(RoutedExpertsArgs& args) { args.experts = KeepExperts(args.experts); }
  void KeepLists(RoutedLeadsArgs& args) { args.experts = KeepLeads(args.experts); }

  Args args_;
  std::vector<std::unique_ptr<std::byte[]>> lists_;
};

}  // namespace sluice
