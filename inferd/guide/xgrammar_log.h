// Collects messages of xgrammar. Its errors are exceptions; its warnings name the parts that it ignores.
//
// Thread safety: a WarningScope collects the messages of its own thread only.
#pragma once

#include <string>

namespace sluice::inferd {

// Collects the warnings of this thread during its lifetime; without a scope they are dropped.
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

}  // namespace sluice::inferd
