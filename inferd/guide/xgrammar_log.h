// What xgrammar says while it works. Its errors are exceptions, its warnings name what it is about to leave
// out.
//
// Thread safety: what a WarningScope collects is what its own thread's calls say.
#pragma once

#include <string>

namespace sluice {

// Collects the warnings of this thread while it lives; without one they are dropped.
class WarningScope {
 public:
  WarningScope();
  ~WarningScope();
  WarningScope(const WarningScope&) = delete;
  WarningScope& operator=(const WarningScope&) = delete;

  // The first warning; "" if there was none.
  const std::string& first() const { return first_; }
  void Add(const std::string& warning);

 private:
  WarningScope* const outer_;
  std::string first_;
};

}  // namespace sluice
