// Checks that the writer produces the worked example of pack/FORMAT.md, byte by byte.
//
// FORMAT.md marks it by code fences: "```manifest.json" holds the whole file; "```hex FILE" holds lines
// "OFFSET: BYTES  note" of which every byte is compared.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "pack/pack.h"
#include "pack/writer/pack_writer.h"
#include "tests/support/folder_bytes.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace sluice {
namespace {

// The checkpoint that FORMAT.md describes: element i of every matrix is (i mod 5 - 2) / 4, norms are 1.
std::string WriteExample(const TempDir& dir) {
  const TinyModelSpec spec{.vocab = 2,
                           .hidden = 4,
                           .layers = 1,
                           .heads = 1,
                           .kv_heads = 1,
                           .experts = 2,
                           .top_k = 1,
                           .width = 2,
                           .max_position = 16,
                           .eos = {1}};
  TinyTensors tensors = MakeTinyTensors(spec);
  for (auto& [name, tensor] : tensors) {
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      tensor.values[i] = tensor.shape.size() == 1 ? 1.0f : (static_cast<float>(i % 5) - 2) / 4;
    }
  }
  EXPECT_TRUE(WriteModelFiles(spec, tensors, TinyConfigJson(spec), dir.File("model")).ok());
  PackOptions options;
  options.recipe.name = "example";
  options.recipe.parts[static_cast<size_t>(Part::kUp)] = {Encoding::kQ8, 16};
  options.recipe.dense = RowFormat{Encoding::kBf16};
  options.recipe.layout = ExpertLayout::kUpGatedown;
  const auto summary = PackModel(dir.File("model"), dir.File("pack"), options, nullptr, nullptr);
  EXPECT_TRUE(summary.ok()) << summary.status();
  return dir.File("pack");
}

struct Fence {
  std::string info;
  std::string content;
};

std::vector<Fence> FencesOf(const std::string& markdown) {
  std::vector<Fence> fences;
  std::istringstream lines(markdown);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) {
      if (!inside) fences.push_back({line.substr(3), ""});
      inside = !inside;
    } else if (inside) {
      fences.back().content += line + "\n";
    }
  }
  return fences;
}

int HexDigit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

// The bytes of "40: 00 01 02  note", from its offset (hexadecimal).
std::string BytesOf(const std::string& line, size_t* offset) {
  size_t at = 0;
  *offset = std::stoul(line, &at, 16);
  std::string bytes;
  for (++at; at + 2 < line.size() + 1 && line[at] == ' '; at += 3) {
    if (at + 2 >= line.size() || HexDigit(line[at + 1]) < 0 || HexDigit(line[at + 2]) < 0) break;
    bytes.push_back(static_cast<char>(HexDigit(line[at + 1]) * 16 + HexDigit(line[at + 2])));
  }
  return bytes;
}

std::string Hex(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += ' ';
    text += kDigits[static_cast<uint8_t>(c) >> 4];
    text += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return text;
}

TEST(FormatExample, IsWhatTheWriterWrites) {
  TempDir dir;
  const std::string pack = WriteExample(dir);
  int compared = 0;
  for (const Fence& fence : FencesOf(ReadAll("pack/FORMAT.md"))) {
    if (fence.info == "manifest.json") {
      EXPECT_EQ(fence.content, ReadAll(pack + "/manifest.json"));
      ++compared;
      continue;
    }
    if (!fence.info.starts_with("hex ")) continue;
    const std::string file = ReadAll(pack + "/" + fence.info.substr(4));
    std::istringstream lines(fence.content);
    for (std::string line; std::getline(lines, line);) {
      size_t offset = 0;
      const std::string bytes = BytesOf(line, &offset);
      ASSERT_FALSE(bytes.empty()) << line;
      ASSERT_LE(offset + bytes.size(), file.size()) << line;
      EXPECT_EQ(Hex(bytes), Hex(file.substr(offset, bytes.size()))) << fence.info << ": " << line;
      ++compared;
    }
  }
  EXPECT_GE(compared, 25);
}

}  // namespace
}  // namespace sluice
