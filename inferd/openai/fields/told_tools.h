// Tool prompt fallback for models whose chat template has no tools: the prompt describes the tools, and past
// calls and results become text. Calls are in Hermes' form, the most common one in training data.
//
// Thread safety: pure functions, safe to use from any thread.
#pragma once

#include "inferd/openai/fields/json_body.h"

namespace sluice::inferd {

// Appends the list of tools and the call syntax to the first system message, or else the first user message.
// REQUIRES: `messages` as read by ReadChatMessage, at least one.
void DescribeToolsInPrompt(const Json& tools, Json* messages);

// Appends calls to the assistant's text. Results become user messages, merged with the user's next message:
// many templates require alternating roles.
void ConvertCallsToText(Json* messages);

}  // namespace sluice::inferd
