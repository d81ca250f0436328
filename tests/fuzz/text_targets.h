// Fuzz targets of tokenizer files, their regular expressions, chat templates and the conversations that these
// render.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace sluice {

bool FuzzTokenizerJson(const uint8_t* data, size_t size);
bool FuzzTokenizerModel(const uint8_t* data, size_t size);
// Input: vocab.json, a zero byte, merges.txt.
bool FuzzVocabAndMerges(const uint8_t* data, size_t size);
bool FuzzTokenizerConfig(const uint8_t* data,
                         size_t size);  // tokenizer_config.json beside a good tokenizer.json
bool FuzzTokenizerRegex(const uint8_t* data, size_t size);  // a pattern of tokenizer.json
bool FuzzChatTemplate(const uint8_t* data, size_t size);    // a template, for a conversation with calls
bool FuzzConversation(const uint8_t* data, size_t size);    // a conversation, for a template with tools

std::vector<FuzzTarget> TextTargets();

}  // namespace sluice
