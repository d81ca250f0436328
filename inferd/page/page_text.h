// The sources of the page as the build found them (cmake/embed_page.cmake writes the .cc).
//
// Thread safety: a pure function.
#pragma once

#include <string_view>

namespace sluice {

struct PageText {
  std::string_view html;  // with @STYLE@ and @SCRIPT@ where the others belong
  std::string_view style;
  std::string_view script;
};

PageText ReadPageText();

}  // namespace sluice
