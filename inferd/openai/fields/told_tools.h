// Tools for models whose chat template knows none: the conversation tells of them, and the past's calls and
// results stand in it as text. Calls are in Hermes' form, which more models have seen than any other.
//
// Thread safety: pure functions, safe to use from any thread.
#pragma once

#include "inferd/openai/fields/json_body.h"

namespace sluice {

// Behind what the system, or else the user, says first: what can be called, and how. REQUIRES: `messages` as
// ReadChatMessage gives them, at least one.
void TellOfTools(const Json& tools, Json* messages);

// Calls go behind the assistant's text. Results become the user's, joined with what the user says right
// behind them: many templates want the two to take turns.
void WriteOutCalls(Json* messages);

}  // namespace sluice
