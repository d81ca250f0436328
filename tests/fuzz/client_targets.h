// Fuzz targets of what clients send: HTTP requests, the JSON bodies of the APIs, and grammars of structured
// output. Requests run through the endpoint to an engine that answers at once, so that the writers of answers
// are reached too.
//
// Thread safety: one thread at a time, for the endpoint of all targets is the same.
#pragma once

#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace sluice {

// The bytes of a connection: any number of requests.
bool FuzzHttp(const uint8_t* data, size_t size);
bool FuzzChatBody(const uint8_t* data, size_t size);         // of /v1/chat/completions
bool FuzzCompletionsBody(const uint8_t* data, size_t size);  // of /v1/completions
bool FuzzResponsesBody(const uint8_t* data, size_t size);    // of /v1/responses
bool FuzzMessagesBody(const uint8_t* data, size_t size);     // of /v1/messages
bool FuzzJsonSchema(const uint8_t* data, size_t size);
bool FuzzGrammarRegex(const uint8_t* data, size_t size);
bool FuzzEbnf(const uint8_t* data, size_t size);

std::vector<FuzzTarget> ClientTargets();

}  // namespace sluice
