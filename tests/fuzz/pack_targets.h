// Fuzz targets of all readers of model folders and packs.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace sluice {

bool FuzzSafetensors(const uint8_t* data, size_t size);  // a whole file: length, header, (no) data
bool FuzzShardIndex(const uint8_t* data, size_t size);
bool FuzzHfConfig(const uint8_t* data, size_t size);      // config.json
bool FuzzGeneration(const uint8_t* data, size_t size);    // generation_config.json beside a good config.json
bool FuzzGgufHeader(const uint8_t* data, size_t size);    // the head of a GGUF file
bool FuzzExtentTable(const uint8_t* data, size_t size);   // extents.bin
bool FuzzManifest(const uint8_t* data, size_t size);      // manifest.json
bool FuzzManifestBody(const uint8_t* data, size_t size);  // its BODY, with a matching digest
bool FuzzJournal(const uint8_t* data, size_t size);
bool FuzzRecipe(const uint8_t* data, size_t size);  // a recipe file
// Input: a manifest's BODY, a zero byte, and an extent table, opened together as a pack.
bool FuzzPackTables(const uint8_t* data, size_t size);

// Builds the input of FuzzPackTables from the two files of a pack.
std::string JoinTables(const std::string& manifest_body, const std::string& table);
// Returns the BODY of a manifest.json.
std::string ManifestBody(const std::string& manifest);

std::vector<FuzzTarget> PackTargets();

}  // namespace sluice
