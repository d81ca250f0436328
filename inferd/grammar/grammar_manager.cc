#include "inferd/grammar/grammar_manager.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "inferd/grammar/grammar_compiler.h"
#include "inferd/grammar/xgrammar_bridge.h"

namespace sluice::inferd {
namespace {

// Lowest priority: compiling competes with steps.
constexpr int kCompileNice = 10;

absl::Duration ThreadTime() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return absl::DurationFromTimespec(now);
}

absl::Status InvalidGrammar(const std::string& what) {
  return ReasonError(absl::StatusCode::kInvalidArgument, "INVALID_GUIDE", absl::StrCat("guided: ", what));
}

}  // namespace

// `phase` decides who owns the other members: the threads while kWorking, the answer otherwise.
struct GrammarRun {
  enum class Phase : uint8_t { kPreparing, kWorking, kReady, kFailed };

  std::atomic<Phase> phase{Phase::kPreparing};
  std::atomic<bool> abandoned{false};  // masks are no longer needed
  std::vector<int32_t> end_ids;
  std::shared_ptr<const CompiledGrammar> grammar;
  std::unique_ptr<GrammarMatcher> matcher;  // null before the first mask
  int32_t token = 0;                        // to accept next
  std::vector<uint32_t> mask;
  bool any = false;
  bool complete = false;
  absl::Status status;  // error, if kFailed

  std::weak_ptr<GrammarMaskQueue> masks;
  Mutex mutex;
  CondVar changed;  // signals a change of phase

  void Set(Phase next) {
    MutexLock lock(&mutex);
    phase.store(next, std::memory_order_release);
    changed.SignalAll();
  }
  void Fail(absl::Status why) {
    status = std::move(why);
    Set(Phase::kFailed);
  }

  absl::Status MakeMask();
};

struct GrammarMaskQueue {
  Mutex mutex;
  CondVar changed;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool idle ABSL_GUARDED_BY(mutex) = false;
  std::deque<std::shared_ptr<GrammarRun>> runs ABSL_GUARDED_BY(mutex);
  // Written by the masks' thread only.
  std::atomic<uint64_t> made{0};
  std::atomic<int64_t> nanos{0};

  void Push(std::shared_ptr<GrammarRun> run) {
    MutexLock lock(&mutex);
    if (stopping) {
      run->Fail(absl::UnavailableError("the grammar manager has stopped"));
      return;
    }
    runs.push_back(std::move(run));
    if (idle) {
      changed.Signal();
    }
  }
};

absl::Status GrammarRun::MakeMask() {
  const bool first = matcher == nullptr;
  if (first) {
    ASSIGN_OR_RETURN(matcher, GrammarMatcher::Create(grammar, end_ids));
  } else {
    RETURN_IF_ERROR(matcher->Accept(token));
  }
  RETURN_IF_ERROR(matcher->FillMask(&mask));
  any = std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; });
  complete = matcher->complete();
  return first && !any ? InvalidGrammar("no token of the model can begin an answer") : absl::OkStatus();
}

GrammarConstraint::~GrammarConstraint() { run_->abandoned = true; }

GrammarConstraint::State GrammarConstraint::state() const {
  switch (run_->phase.load(std::memory_order_acquire)) {
    case GrammarRun::Phase::kPreparing:
      return State::kPreparing;
    case GrammarRun::Phase::kFailed:
      return State::kFailed;
    default:
      return State::kReady;
  }
}

absl::StatusOr<GrammarConstraint::Next> GrammarConstraint::Wait() {
  if (run_->phase.load(std::memory_order_acquire) == GrammarRun::Phase::kWorking) {
    MutexLock lock(&run_->mutex);
    while (run_->phase.load(std::memory_order_acquire) == GrammarRun::Phase::kWorking) {
      run_->changed.Wait(&run_->mutex);
    }
  }
  if (run_->phase.load(std::memory_order_acquire) == GrammarRun::Phase::kFailed) {
    return run_->status;
  }
  return Next{run_->mask, run_->any, run_->complete};
}

void GrammarConstraint::Accept(int32_t token) {
  run_->token = token;
  run_->phase.store(GrammarRun::Phase::kWorking, std::memory_order_release);
  if (const std::shared_ptr<GrammarMaskQueue> masks = run_->masks.lock()) {
    masks->Push(run_);
  } else {
    run_->Fail(absl::UnavailableError("the grammar manager has stopped"));
  }
}

GrammarManager::GrammarManager(GrammarVocabulary vocabulary, const GrammarLimits& limits)
    : vocabulary_(std::move(vocabulary)), limits_(limits), masks_(std::make_shared<GrammarMaskQueue>()) {
  compile_thread_ = std::thread([this] { CompileLoop(); });
  mask_thread_ = std::thread([this] { MaskLoop(); });
}

GrammarManager::~GrammarManager() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  {
    MutexLock lock(&masks_->mutex);
    masks_->stopping = true;
    masks_->changed.SignalAll();
  }
  compile_thread_.join();
  mask_thread_.join();
  const absl::Status end = absl::UnavailableError("the grammar manager has stopped");
  MutexLock lock(&mutex_);
  for (const auto& [key, compilation] : pending_) {
    for (const std::shared_ptr<GrammarRun>& run : compilation->runs) {
      run->Fail(end);
    }
  }
  MutexLock masks_lock(&masks_->mutex);
  for (const std::shared_ptr<GrammarRun>& run : masks_->runs) {
    run->Fail(end);
  }
  masks_->runs.clear();
}

absl::StatusOr<std::unique_ptr<GrammarConstraint>> GrammarManager::Start(
    const GrammarSpec& spec, std::vector<int32_t> end_ids, absl::Span<const int32_t> visible_tokens) {
  ASSIGN_OR_RETURN(GrammarSource source, SourceOf(spec, visible_tokens));
  auto run = std::make_shared<GrammarRun>();
  run->end_ids = std::move(end_ids);
  run->masks = masks_;
  const std::string key = source.Key();
  MutexLock lock(&mutex_);
  if (const auto cached = cache_.find(key); cached != cache_.end()) {
    cached->second.used = ++uses_;
    stats_.cache_hits++;
    run->grammar = cached->second.grammar;
    masks_->Push(run);
    return std::make_unique<GrammarConstraint>(std::move(run));
  }
  std::shared_ptr<Compilation>& compilation = pending_[key];
  if (compilation == nullptr) {
    if (pending_.size() > limits_.max_waiting) {
      pending_.erase(key);
      return WithRetryDelay(
          ReasonError(absl::StatusCode::kResourceExhausted, "GUIDES_WAIT",
                      absl::StrCat(limits_.max_waiting, " constraints are queued, the maximum")),
          absl::Seconds(1));
    }
    compilation = std::make_shared<Compilation>();
    compilation->source = std::move(source);
    queue_.push_back(key);
    changed_.SignalAll();
  }
  compilation->runs.push_back(run);
  return std::make_unique<GrammarConstraint>(std::move(run));
}

GrammarStats GrammarManager::Stats() const {
  MutexLock lock(&mutex_);
  GrammarStats stats = stats_;
  stats.waiting = pending_.size();
  stats.masks = masks_->made.load(std::memory_order_relaxed);
  stats.mask_seconds = static_cast<double>(masks_->nanos.load(std::memory_order_relaxed)) * 1e-9;
  return stats;
}

bool GrammarManager::IsWanted(const Compilation& compilation) const {
  return std::any_of(compilation.runs.begin(), compilation.runs.end(),
                     [](const std::shared_ptr<GrammarRun>& run) { return !run->abandoned; });
}

void GrammarManager::CompileLoop() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kCompileNice);
  GrammarCompiler compiler(&vocabulary_);
  for (;;) {
    std::string key;
    GrammarSource source;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !stopping_) {
        changed_.Wait(&mutex_);
      }
      if (stopping_) {
        return;
      }
      key = std::move(queue_.front());
      queue_.pop_front();
      const auto pending = pending_.find(key);
      if (!IsWanted(*pending->second)) {
        pending_.erase(pending);
        continue;
      }
      source = pending->second->source;
    }
    Finish(key, compiler.Compile(source));
  }
}

void GrammarManager::Finish(const std::string& key,
                            const absl::StatusOr<std::shared_ptr<const CompiledGrammar>>& grammar) {
  std::shared_ptr<Compilation> compilation;
  {
    MutexLock lock(&mutex_);
    const auto pending = pending_.find(key);
    compilation = std::move(pending->second);
    pending_.erase(pending);
    (grammar.ok() ? stats_.compiled : stats_.refused)++;
    if (grammar.ok()) {
      Keep(key, *grammar);
    }
  }
  for (const std::shared_ptr<GrammarRun>& run : compilation->runs) {
    if (grammar.ok()) {
      run->grammar = *grammar;
      masks_->Push(run);
    } else {
      run->Fail(absl::IsInvalidArgument(grammar.status())
                    ? InvalidGrammar(std::string(grammar.status().message()))
                    : grammar.status());
    }
  }
}

// Evicts the least recently used grammars; grammars in use live on with their answers.
void GrammarManager::Keep(const std::string& key, std::shared_ptr<const CompiledGrammar> grammar) {
  const uint64_t bytes = grammar->bytes;
  if (bytes > limits_.cache_bytes) {
    return;
  }
  while (stats_.cache_bytes + bytes > limits_.cache_bytes) {
    const auto oldest = std::min_element(cache_.begin(), cache_.end(), [](const auto& a, const auto& b) {
      return a.second.used < b.second.used;
    });
    stats_.cache_bytes -= oldest->second.grammar->bytes;
    cache_.erase(oldest);
  }
  cache_.emplace(key, Cached{std::move(grammar), ++uses_});
  stats_.cache_bytes += bytes;
}

void GrammarManager::MaskLoop() {
  for (;;) {
    std::shared_ptr<GrammarRun> run;
    {
      MutexLock lock(&masks_->mutex);
      while (masks_->runs.empty() && !masks_->stopping) {
        masks_->idle = true;
        masks_->changed.Wait(&masks_->mutex);
        masks_->idle = false;
      }
      if (masks_->stopping) {
        return;
      }
      run = std::move(masks_->runs.front());
      masks_->runs.pop_front();
    }
    if (run->abandoned) {
      continue;
    }
    const absl::Duration before = ThreadTime();
    const absl::Status status = run->MakeMask();
    const absl::Duration took = ThreadTime() - before;
    masks_->made.fetch_add(1, std::memory_order_relaxed);
    masks_->nanos.fetch_add(absl::ToInt64Nanoseconds(took), std::memory_order_relaxed);
    if (!status.ok()) {
      run->Fail(status);
    } else if (took > limits_.mask_cpu_time) {
      run->Fail(ReasonError(
          absl::StatusCode::kResourceExhausted, "GUIDE_TOO_SLOW",
          absl::StrCat("guided: the tokens that may come next took ", absl::FormatDuration(took),
                       " to find, above the limit of ", absl::FormatDuration(limits_.mask_cpu_time))));
    } else {
      run->Set(GrammarRun::Phase::kReady);
    }
  }
}

void WriteGrammarMetrics(const GrammarStats& stats, MetricText* text) {
  constexpr MetricType kCounter = MetricType::kCounter;
  constexpr MetricType kGauge = MetricType::kGauge;
  text->Family("inferd_grammars_total", kCounter, "Grammars of answers, by outcome.");
  text->Sample({{"outcome", "compiled"}}, stats.compiled);
  text->Sample({{"outcome", "refused"}}, stats.refused);
  text->Sample({{"outcome", "cached"}}, stats.cache_hits);
  text->One("inferd_grammars_waiting", kGauge, "Grammars queued or being compiled.", stats.waiting);
  text->One("inferd_grammar_cache_bytes", kGauge, "Memory of cached compiled grammars.", stats.cache_bytes);
  text->One("inferd_grammar_masks_total", kCounter, "Token masks computed.", stats.masks);
  text->One("inferd_grammar_mask_seconds_total", kCounter, "Processor time of computing masks.",
            stats.mask_seconds);
}

}  // namespace sluice::inferd
