// The cache of packs: how models are told apart, and what is listed. The commands are tested by
// tests/e2e/models/packs_test.py.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "cli/pack_cache.h"
#include "tests/support/temp_dir.h"

namespace sluice::cli {
namespace {

TEST(PacksTest, AModelsStateNamesTheFilesThatAreRead) {
  const TempDir dir;
  const auto write = [&dir](const std::string& name) { std::ofstream(dir.path() + "/" + name) << name; };
  for (const char* name : {"a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b.gguf"}) write(name);
  const std::string split = ModelState(dir.path() + "/a-00001-of-00002.gguf");
  EXPECT_TRUE(absl::StrContains(split, "a-00002-of-00002.gguf"));
  EXPECT_FALSE(absl::StrContains(split, "b.gguf")) << "the neighbour's changes are not this model's";
  EXPECT_FALSE(absl::StrContains(ModelState(dir.path() + "/b.gguf"), "of-00002"));
  const std::string folder = ModelState(dir.path());
  EXPECT_TRUE(absl::StrContains(folder, "b.gguf"));
  std::filesystem::last_write_time(dir.path() + "/b.gguf", std::filesystem::file_time_type::min());
  EXPECT_NE(ModelState(dir.path()), folder);
  EXPECT_EQ(ModelState(dir.path() + "/absent"), "");
}

TEST(PacksTest, TheFolderIsTheFirstThatTheEnvironmentNames) {
  setenv("HOME", "/h", 1);
  unsetenv("XDG_CACHE_HOME");
  unsetenv("SLUICE_CACHE_DIR");
  EXPECT_EQ(*PackCacheFolder(), "/h/.cache/sluice/packs");
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(*PackCacheFolder(), "/x/sluice/packs");
  setenv("SLUICE_CACHE_DIR", "/s", 1);
  EXPECT_EQ(*PackCacheFolder(), "/s/packs");
  for (const char* variable : {"HOME", "XDG_CACHE_HOME", "SLUICE_CACHE_DIR"}) unsetenv(variable);
  EXPECT_TRUE(absl::IsFailedPrecondition(PackCacheFolder().status()));
}

TEST(PacksTest, WhatIsNoPackIsNotListedAndNotRemoved) {
  const TempDir dir;
  std::filesystem::create_directories(dir.path() + "/model-q4-0.pack.partial");
  std::filesystem::create_directories(dir.path() + "/other");
  const auto packs = ListCachedPacks(dir.path());
  ASSERT_TRUE(packs.ok()) << packs.status();
  ASSERT_EQ(packs->size(), 1u);
  EXPECT_EQ(packs->front().name, "model-q4-0");
  EXPECT_FALSE(packs->front().complete);
  EXPECT_TRUE(absl::IsNotFound(RemoveCachedPack(dir.path(), "other")));
  EXPECT_TRUE(absl::IsNotFound(RemoveCachedPack(dir.path(), "../" + dir.path())));
  EXPECT_TRUE(RemoveCachedPack(dir.path(), "model-q4-0").ok());
  EXPECT_TRUE(ListCachedPacks(dir.path())->empty());
  EXPECT_TRUE(ListCachedPacks(dir.path() + "/absent")->empty());
}

}  // namespace
}  // namespace sluice::cli
