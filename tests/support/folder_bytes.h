// All files of a folder, name and content, as one string, for checks of bit-identity.
//
// Thread safety: free functions.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace sluice {

inline std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream content;
  content << in.rdbuf();
  return content.str();
}

inline void WriteAll(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string FolderBytes(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    if (entry.is_regular_file()) names.push_back(entry.path().string().substr(dir.size()));
  }
  std::sort(names.begin(), names.end());
  std::string all;
  for (const std::string& name : names) all += name + "\n" + ReadAll(dir + name);
  return all;
}

}  // namespace sluice
