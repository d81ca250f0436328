#include "inferd/engine/aside_queue.h"

namespace sluice {

absl::Status AsideQueue::RunStep(EngineWork work) {
  Aside aside;
  aside.work = std::move(work);
  return Await(&aside);
}

absl::Status AsideQueue::RunCall(std::function<absl::Status()> call) {
  Aside aside;
  aside.call = std::move(call);
  return Await(&aside);
}

absl::Status AsideQueue::Await(Aside* aside) {
  {
    MutexLock lock(&mutex_);
    if (!closed_.ok()) {
      return closed_;
    }
    asides_.push_back(aside);
  }
  wake_();
  MutexLock lock(&mutex_);
  while (!aside->done) {
    done_.Wait(&mutex_);
  }
  return std::move(aside->status);
}

bool AsideQueue::RunNext(const std::function<absl::Status(const EngineWork&)>& run_step) {
  Aside* aside = nullptr;
  {
    MutexLock lock(&mutex_);
    if (asides_.empty()) {
      return false;
    }
    aside = asides_.front();
    asides_.pop_front();
  }
  absl::Status status = aside->call ? aside->call() : run_step(aside->work);
  MutexLock lock(&mutex_);
  aside->status = std::move(status);
  aside->done = true;
  done_.SignalAll();
  return true;
}

void AsideQueue::FailSteps(const absl::Status& status) {
  MutexLock lock(&mutex_);
  Fail(status, /*calls_too=*/false);
}

void AsideQueue::Close(const absl::Status& status) {
  MutexLock lock(&mutex_);
  closed_ = status;
  Fail(status, /*calls_too=*/true);
}

void AsideQueue::Fail(const absl::Status& status, bool calls_too) {
  std::deque<Aside*> left;
  for (Aside* aside : asides_) {
    if (aside->call && !calls_too) {
      left.push_back(aside);
      continue;
    }
    aside->status = status;
    aside->done = true;
  }
  asides_ = std::move(left);
  done_.SignalAll();
}

}  // namespace sluice
