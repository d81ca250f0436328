// The page at `/`: a chat and a live view for a browser, in one HTML file without any other asset. Its
// sources are the files beside this one, put together when inferd is built.
//
// Thread safety: a pure function, safe to call from any thread.
#pragma once

#include "inferd/http/http_message.h"

namespace sluice {

// The page, with headers that let a browser run and show only what is in it, and ask only the server that it
// came from.
HttpAnswer PageAnswer();

}  // namespace sluice
