#include "cli/router/model_table.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/size.h"

namespace sluice::cli {
namespace {

void Add(const ModelNeed& need, ModelNeed* sum) {
  sum->memory += need.memory;
  sum->reserved += need.reserved;
}

// True if `need` fits beside `used`.
bool Fits(const ModelNeed& need, const ModelNeed& used, const ModelNeed& budget) {
  return need.memory + used.memory <= budget.memory && need.reserved + used.reserved <= budget.reserved;
}

}  // namespace

const char* NameOf(ModelState state) {
  switch (state) {
    case ModelState::kUnloaded:
      return "unloaded";
    case ModelState::kLoading:
      return "loading";
    case ModelState::kLoaded:
      return "loaded";
    case ModelState::kUnloading:
      break;
  }
  return "unloading";
}

absl::Status ModelTable::Add(const std::string& name, ModelNeed need) {
  if (need.memory > budget_.memory) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "model ", name, " takes ", FormatSize(need.memory), " beside its weights, and --models-budget is ",
        FormatSize(budget_.memory), "; a smaller --context or --parallel takes less"));
  }
  if (need.reserved > budget_.reserved) {
    return absl::ResourceExhaustedError(
        absl::StrCat("model ", name, " needs at least ", FormatSize(need.reserved),
                     " of weights in memory, and --dram-budget is ", FormatSize(budget_.reserved)));
  }
  models_.emplace_back();
  models_.back().name = name;
  models_.back().need = need;
  return absl::OkStatus();
}

ModelNeed ModelTable::Used() const {
  ModelNeed used;
  for (const Model& model : models_) {
    if (model.state != ModelState::kUnloaded) {
      cli::Add(model.need, &used);
    }
  }
  return used;
}

uint64_t ModelTable::Wait(size_t model) {
  models_[model].waiting.insert(next_ticket_);
  return next_ticket_++;
}

void ModelTable::Began(size_t model, absl::Time now) {
  ++models_[model].running;
  models_[model].used = now;
}

void ModelTable::Ended(size_t model, absl::Time now) {
  --models_[model].running;
  models_[model].used = now;
}

void ModelTable::Loaded(size_t model, absl::Time now) {
  models_[model].state = ModelState::kLoaded;
  models_[model].yields = false;
  models_[model].used = now;
}

void ModelTable::Gone(size_t model) {
  models_[model].state = ModelState::kUnloaded;
  models_[model].yields = false;
}

size_t ModelTable::FirstWanted() const {
  size_t first = models_.size();
  for (size_t i = 0; i < models_.size(); ++i) {
    const Model& model = models_[i];
    const bool is_away = model.state == ModelState::kUnloaded || model.state == ModelState::kUnloading;
    if (is_away && !model.waiting.empty() &&
        (first == models_.size() || *model.waiting.begin() < *models_[first].waiting.begin())) {
      first = i;
    }
  }
  return first;
}

void ModelTable::ChooseYielding(size_t wanted) {
  ModelNeed kept;  // by models that stay
  std::vector<Model*> loaded;
  for (size_t i = 0; i < models_.size(); ++i) {
    Model& model = models_[i];
    model.yields = false;
    if (model.state == ModelState::kLoaded) {
      loaded.push_back(&model);
    }
    if (model.state == ModelState::kLoaded || model.state == ModelState::kLoading) {
      cli::Add(model.need, &kept);
    }
  }
  if (wanted == models_.size()) {
    return;
  }
  std::stable_sort(loaded.begin(), loaded.end(), [this](const Model* a, const Model* b) {
    return std::make_tuple(!IsIdle(*a), a->used) < std::make_tuple(!IsIdle(*b), b->used);
  });
  for (Model* model : loaded) {
    if (Fits(models_[wanted].need, kept, budget_)) {
      return;
    }
    model->yields = true;
    kept.memory -= model->need.memory;
    kept.reserved -= model->need.reserved;
  }
}

ModelTable::Step ModelTable::Begin(size_t model, bool load) {
  models_[model].state = load ? ModelState::kLoading : ModelState::kUnloading;
  return {model, load};
}

std::optional<ModelTable::Step> ModelTable::Next(absl::Time now) {
  const size_t wanted = FirstWanted();
  ChooseYielding(wanted);
  for (size_t i = 0; i < models_.size(); ++i) {
    const Model& model = models_[i];
    const bool expired = IsIdle(model) && now >= model.used + idle_;
    if (model.state == ModelState::kLoaded && (expired || (model.yields && model.running == 0))) {
      return Begin(i, /*load=*/false);
    }
  }
  if (wanted < models_.size() && models_[wanted].state == ModelState::kUnloaded &&
      Fits(models_[wanted].need, Used(), budget_)) {
    return Begin(wanted, /*load=*/true);
  }
  return std::nullopt;
}

absl::Time ModelTable::NextDue() const {
  absl::Time due = absl::InfiniteFuture();
  for (const Model& model : models_) {
    if (model.state == ModelState::kLoaded && IsIdle(model)) {
      due = std::min(due, model.used + idle_);
    }
  }
  return due;
}

}  // namespace sluice::cli
