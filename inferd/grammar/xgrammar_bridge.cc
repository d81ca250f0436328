#include "inferd/grammar/xgrammar_bridge.h"

#include "support/logging.h"  // xgrammar's

namespace sluice::inferd {
namespace {

thread_local WarningScope* current_scope = nullptr;

}  // namespace

WarningScope::WarningScope() : outer_(current_scope) { current_scope = this; }
WarningScope::~WarningScope() { current_scope = outer_; }

void WarningScope::Add(const std::string& warning) {
  if (first_.empty()) {
    first_ = warning;
  }
}

}  // namespace sluice::inferd

namespace xgrammar {

void LogFatalImpl(const std::string& file, int lineno, const std::string& message) {
  throw LogFatalError(file, lineno, message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  if (level == XGRAMMAR_LOG_LEVEL_WARNING && sluice::inferd::current_scope != nullptr) {
    sluice::inferd::current_scope->Add(message);
  }
}

}  // namespace xgrammar
