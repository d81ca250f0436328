// The page at `/`: a chat and a live view for browsers, in one HTML file without other assets. The build
// assembles it from the files in this folder.
//
// Thread safety: a pure function, safe to call from any thread.
#pragma once

#include <string_view>

#include "daemon/http/http_message.h"

namespace sluice::inferd {

// Returns the page, with headers that restrict the browser to its own content and to requests to its own
// server.
HttpResponse PageAnswer();

// Sources of the page, embedded by the build (cmake/embed_page.cmake writes the .cc).
//
// Thread safety: a pure function.

struct PageText {
  std::string_view html;  // with placeholders @STYLE@ and @SCRIPT@
  std::string_view style;
  std::string_view script;
};

PageText ReadPageText();

}  // namespace sluice::inferd
