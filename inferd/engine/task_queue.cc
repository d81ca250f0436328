#include "inferd/engine/task_queue.h"

namespace sluice::inferd {

absl::Status TaskQueue::RunStep(EngineWork work) {
  ControlTask task;
  task.work = std::move(work);
  return Await(&task);
}

absl::Status TaskQueue::RunCall(std::function<absl::Status()> call) {
  ControlTask task;
  task.call = std::move(call);
  return Await(&task);
}

absl::Status TaskQueue::Await(ControlTask* task) {
  {
    MutexLock lock(&mutex_);
    if (!closed_.ok()) {
      return closed_;
    }
    tasks_.push_back(task);
  }
  wake_();
  MutexLock lock(&mutex_);
  while (!task->done) {
    done_.Wait(&mutex_);
  }
  return std::move(task->status);
}

bool TaskQueue::RunNext(const std::function<absl::Status(const EngineWork&)>& run_step) {
  ControlTask* task = nullptr;
  {
    MutexLock lock(&mutex_);
    if (tasks_.empty()) {
      return false;
    }
    task = tasks_.front();
    tasks_.pop_front();
  }
  absl::Status status = task->call ? task->call() : run_step(task->work);
  MutexLock lock(&mutex_);
  task->status = std::move(status);
  task->done = true;
  done_.SignalAll();
  return true;
}

void TaskQueue::FailSteps(const absl::Status& status) {
  MutexLock lock(&mutex_);
  Fail(status, /*calls_too=*/false);
}

void TaskQueue::Close(const absl::Status& status) {
  MutexLock lock(&mutex_);
  closed_ = status;
  Fail(status, /*calls_too=*/true);
}

void TaskQueue::Fail(const absl::Status& status, bool calls_too) {
  std::deque<ControlTask*> left;
  for (ControlTask* task : tasks_) {
    if (task->call && !calls_too) {
      left.push_back(task);
      continue;
    }
    task->status = status;
    task->done = true;
  }
  tasks_ = std::move(left);
  done_.SignalAll();
}

}  // namespace sluice::inferd
