// GrammarManager: constraints of running answers. Each text is compiled once, and each answer's next mask is
// computed in parallel to the running step.
//
// One thread compiles clients' constraints, in order and at a low priority; a second thread computes masks.
// States of an answer's constraint:
//   kPreparing -> kReady <-> (Accept: the mask behind that token is being computed)
//              -> kFailed
// The engine never compiles, and waits for a mask only if its step was shorter than computing it.
//
// Bounds: number of queued constraints; memory of unused compiled grammars; processor time of one mask. A
// grammar that exceeds the last one fails alone. A compilation cannot be interrupted: the limits of
// grammar_compiler.h keep it within seconds; meanwhile running answers continue and only new constraints
// wait.
//
// Thread safety: GrammarManager is thread-safe. A GrammarConstraint belongs to one thread at a time, and may
// outlive its GrammarManager; then it fails.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/metrics.h"
#include "common/base/mutex.h"
#include "inferd/api/engine_api.h"
#include "inferd/grammar/grammar_compiler.h"

namespace sluice::inferd {

struct GrammarLimits {
  uint32_t max_waiting = 64;           // maximum number of queued constraints
  uint64_t cache_bytes = 64ull << 20;  // compiled grammars kept for later
  absl::Duration mask_cpu_time =
      absl::Milliseconds(250);  // per mask; thread time, so a busy machine does not count
};

struct GrammarStats {
  uint64_t compiled = 0;
  uint64_t refused = 0;     // by the compiler
  uint64_t cache_hits = 0;  // started without compiling
  uint64_t cache_bytes = 0;
  uint64_t waiting = 0;  // queued, including the one being compiled
  uint64_t masks = 0;
  double mask_seconds = 0;  // processor time of computing masks
};

struct GrammarRun;        // state shared by an answer and the threads
struct GrammarMaskQueue;  // runs whose next mask is due

// The constraint of one answer.
class GrammarConstraint {
 public:
  enum class State : uint8_t { kPreparing, kReady, kFailed };

  explicit GrammarConstraint(std::shared_ptr<GrammarRun> run) : run_(std::move(run)) {}
  ~GrammarConstraint();
  GrammarConstraint(const GrammarConstraint&) = delete;
  GrammarConstraint& operator=(const GrammarConstraint&) = delete;

  // kPreparing until the first mask or an error is available.
  State state() const;

  // Returns the allowed tokens. Waits for the mask behind the last accepted token. INVALID_ARGUMENT (reason
  // INVALID_GUIDE): the constraint cannot be compiled or allows no answer; RESOURCE_EXHAUSTED: it exceeds a
  // limit; INTERNAL. REQUIRES: state() is not kPreparing. The mask is valid until Accept.
  struct Next {
    absl::Span<const uint32_t> allowed;  // bit id % 32 of word id / 32
    bool any = false;                    // at least one token is allowed
    bool complete = false;               // the answer so far is complete
  };
  absl::StatusOr<Next> Wait();

  // Advances by `token`, which the mask allows; starts the computation of the next mask.
  void Accept(int32_t token);

 private:
  const std::shared_ptr<GrammarRun> run_;
};

class GrammarManager {
 public:
  explicit GrammarManager(GrammarVocabulary vocabulary, const GrammarLimits& limits = {});
  // Waits for a running compilation.
  ~GrammarManager();

  // Starts the constraint of an answer, which ends with one of `end_ids` (of the vocabulary; none: where no
  // token is allowed). `visible_tokens`: as in SourceOf. Parses the text here, compiles elsewhere.
  // INVALID_ARGUMENT naming the field: refused by SourceOf; RESOURCE_EXHAUSTED with a retry delay: the queue
  // is full.
  absl::StatusOr<std::unique_ptr<GrammarConstraint>> Start(const GrammarSpec& spec,
                                                           std::vector<int32_t> end_ids,
                                                           absl::Span<const int32_t> visible_tokens = {});

  GrammarStats Stats() const;

 private:
  struct Compilation {
    GrammarSource source;
    std::vector<std::shared_ptr<GrammarRun>> runs;  // waiting for this compilation
  };
  struct Cached {
    std::shared_ptr<const CompiledGrammar> grammar;
    uint64_t used = 0;  // time of last use; larger is later
  };

  void CompileLoop();
  void MaskLoop();
  bool IsWanted(const Compilation& compilation) const;
  void Finish(const std::string& key, const absl::StatusOr<std::shared_ptr<const CompiledGrammar>>& grammar);
  void Keep(const std::string& key, std::shared_ptr<const CompiledGrammar> grammar)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const GrammarVocabulary vocabulary_;
  const GrammarLimits limits_;
  const std::shared_ptr<GrammarMaskQueue> masks_;  // shared with the runs, which may outlive this

  mutable Mutex mutex_;
  CondVar changed_;  // signals queue_ or stopping_
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::string> queue_ ABSL_GUARDED_BY(mutex_);  // keys of pending_, in order of arrival
  absl::flat_hash_map<std::string, std::shared_ptr<Compilation>> pending_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Cached> cache_ ABSL_GUARDED_BY(mutex_);
  uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
  GrammarStats stats_ ABSL_GUARDED_BY(mutex_);

  std::thread compile_thread_;
  std::thread mask_thread_;
};

// Writes the counters of GrammarManager in Prometheus' text format.
//
// Thread safety: a pure function over its arguments, safe to call from any thread.

void WriteGrammarMetrics(const GrammarStats& stats, MetricText* text);

}  // namespace sluice::inferd
