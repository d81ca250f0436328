// CallForm: the syntax of a tool call in a model family, as literal parts around a name and a JSON object,
// for grammars; and the prefix of the answer's text.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <string>

#include "inferd/dialect/dialect.h"

namespace sluice::inferd {

// before_name NAME before_arguments OBJECT end
struct CallForm {
  ToolStyle style = ToolStyle::kHermes;  // style of the parser for this form
  std::string before_name;
  std::string before_arguments;
  std::string end;      // may be empty
  bool quoted = false;  // true if the name is inside a JSON string
};

// Form for `style`. Families without JSON arguments, and models without tool support, use the Hermes form.
CallForm CallFormOf(ToolStyle style);

// Prefix before an answer's text; "" except for families with channels.
std::string TextOpening(ToolStyle style);

}  // namespace sluice::inferd
