// Sources of the page, embedded by the build (cmake/embed_page.cmake writes the .cc).
//
// Thread safety: a pure function.
#pragma once

#include <string_view>

namespace sluice::inferd {

struct PageText {
  std::string_view html;  // with placeholders @STYLE@ and @SCRIPT@
  std::string_view style;
  std::string_view script;
};

PageText ReadPageText();

}  // namespace sluice::inferd
