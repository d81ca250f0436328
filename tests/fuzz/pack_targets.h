// Fuzz targets of everything that reads model folders and packs. Each takes any bytes, must not crash, and
// checks what a successful parse promises (it ends the program if that is broken). For the seeded test in CI
// and for libFuzzer (fuzz_main.cc) alike.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice {

// Each returns whether the parser accepted the bytes.
bool FuzzSafetensors(const uint8_t* data, size_t size);  // a whole file: length, header, (no) data
bool FuzzShardIndex(const uint8_t* data, size_t size);
bool FuzzHfConfig(const uint8_t* data, size_t size);      // config.json
bool FuzzGeneration(const uint8_t* data, size_t size);    // generation_config.json beside a good config.json
bool FuzzGgufHeader(const uint8_t* data, size_t size);    // the head of a GGUF file
bool FuzzExtentTable(const uint8_t* data, size_t size);   // extents.bin
bool FuzzManifest(const uint8_t* data, size_t size);      // manifest.json
bool FuzzManifestBody(const uint8_t* data, size_t size);  // its BODY: the digest is made to fit
bool FuzzJournal(const uint8_t* data, size_t size);
bool FuzzRecipe(const uint8_t* data, size_t size);  // a recipe file
// A manifest's BODY, a zero byte, and an extent table: opened together as a pack.
bool FuzzPackTables(const uint8_t* data, size_t size);

// What FuzzPackTables takes, from the two files of a pack.
std::string JoinTables(const std::string& manifest_body, const std::string& table);
// BODY of a manifest.json.
std::string ManifestBody(const std::string& manifest);

}  // namespace sluice
