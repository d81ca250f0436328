// The page at `/`: a chat and a live view for browsers, in one HTML file without other assets. The build
// assembles it from the files in this folder.
//
// Thread safety: a pure function, safe to call from any thread.
#pragma once

#include "inferd/http/http_message.h"

namespace sluice::inferd {

// Returns the page, with headers that restrict the browser to its own content and to requests to its own
// server.
HttpResponse PageAnswer();

}  // namespace sluice::inferd
