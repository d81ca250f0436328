// Parsing of a hub's responses: its list of files, the choice among them, digests, and which failures are
// tried again. Whole pulls: tests/e2e/models/pull_test.py.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "cli/http_client.h"
#include "cli/hub_listing.h"

namespace sluice::cli {
namespace {

absl::Span<const std::byte> Bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string DigestOf(DigestKind kind, std::string_view text) {
  FileDigest digest(kind, text.size());
  digest.Update(Bytes(text.substr(0, text.size() / 2)));
  digest.Update(Bytes(text.substr(text.size() / 2)));
  return digest.Finish();
}

TEST(HubTest, DigestsAreThoseOfSha256AndOfGit) {
  EXPECT_EQ(DigestOf(DigestKind::kSha256, "abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // `printf hello | git hash-object --stdin`
  EXPECT_EQ(DigestOf(DigestKind::kGitSha1, "hello"), "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0");
}

std::vector<HubFile> Files(const std::vector<std::string>& paths) {
  std::vector<HubFile> files;
  for (const std::string& path : paths) files.push_back({.path = path, .bytes = 1});
  return files;
}

std::vector<std::string> Chosen(const absl::StatusOr<FileChoice>& choice) {
  std::vector<std::string> paths;
  if (!choice.ok()) return {choice.status().ToString()};
  for (const HubFile& file : choice->files) paths.push_back(file.path);
  return paths;
}

TEST(HubTest, ModelFolderIsWeightsThenConfigLast) {
  const auto choice = ChooseFiles(
      Files({".gitattributes", "README.md", "additional_chat_templates/rag.jinja",
             "additional_chat_templates/tool_use.jinja", "chat_template.jinja", "config.json",
             "consolidated.safetensors", "m.gguf", "model-1.safetensors", "model-2.safetensors",
             "model.safetensors.index.json", "model.onnx", "sub/model.safetensors", "tokenizer.model"}),
      "");
  EXPECT_EQ(Chosen(choice),
            (std::vector<std::string>{"additional_chat_templates/tool_use.jinja", "chat_template.jinja",
                                      "model.safetensors.index.json", "tokenizer.model",
                                      "model-1.safetensors", "model-2.safetensors", "config.json"}));
  EXPECT_EQ(choice->model, "");
  EXPECT_EQ(Chosen(ChooseFiles(Files({"config.json", "consolidated.safetensors"}), "")),
            (std::vector<std::string>{"consolidated.safetensors", "config.json"}));
}

TEST(HubTest, AnOnlyGgufModelNeedsNoName) {
  const auto choice = ChooseFiles(
      Files({"README.md", "config.json", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mmproj-m.gguf"}),
      "");
  EXPECT_EQ(Chosen(choice), (std::vector<std::string>{"m-00002-of-00002.gguf", "m-00001-of-00002.gguf"}));
  EXPECT_EQ(choice->model, "m-00001-of-00002.gguf");
}

TEST(HubTest, ErrorsNameWhatThereIsAndNotWithoutEnd) {
  std::vector<std::string> many;
  for (int i = 0; i < 50; ++i) many.push_back(absl::StrCat("m", i, ".gguf"));
  const absl::Status status = ChooseFiles(Files(many), "").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "m0.gguf")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "and 30 more")) << status;
  EXPECT_TRUE(absl::IsNotFound(ChooseFiles({}, "").status()));
}

TEST(HubTest, AnswersThatMayBeOthersTomorrowAreTriedAgain) {
  for (const int status : {408, 429, 500, 502, 503, 504}) {
    EXPECT_TRUE(absl::IsUnavailable(StatusOfAnswer({.status = status}, "m", false))) << status;
  }
  EXPECT_TRUE(StatusOfAnswer({.status = 206}, "m", false).ok());
  EXPECT_TRUE(absl::IsNotFound(StatusOfAnswer({.status = 404}, "m", false)));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOfAnswer({.status = 400}, "m", false)));
  EXPECT_TRUE(absl::IsUnauthenticated(StatusOfAnswer({.status = 401}, "m", false)));
  Retries retries(nullptr, [](const std::string&) {});
  const absl::Status failure = absl::UnavailableError("gone");
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(retries.Wait(failure, absl::ZeroDuration(), false).ok()) << i;
  EXPECT_TRUE(retries.Wait(failure, absl::ZeroDuration(), true).ok()) << "a byte is progress";
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(retries.Wait(failure, absl::ZeroDuration(), false).ok()) << i;
  EXPECT_TRUE(absl::IsUnavailable(retries.Wait(failure, absl::ZeroDuration(), false)));
  EXPECT_TRUE(absl::IsNotFound(retries.Wait(absl::NotFoundError("m"), std::nullopt, true)));
  const std::atomic<bool> cancelled{true};
  Retries stopped(&cancelled, [](const std::string&) {});
  EXPECT_TRUE(absl::IsCancelled(stopped.Wait(failure, absl::Minutes(1), false)));
}

TEST(HubTest, TokensGoWhereNobodyElseReadsThem) {
  const auto check = [](const std::string& endpoint, const std::string& token) {
    return CheckAccess({.endpoint = endpoint, .token = token, .repository = "a/b"});
  };
  EXPECT_TRUE(check("https://hub", "t").ok());
  EXPECT_TRUE(check("http://127.0.0.1:80", "t").ok());
  EXPECT_TRUE(check("http://[::1]:80", "t").ok());
  EXPECT_TRUE(check("http://hub", "").ok());
  EXPECT_FALSE(check("http://hub:80", "t").ok());
  EXPECT_FALSE(check("http://localhost.example", "t").ok());
  EXPECT_FALSE(check("ftp://hub", "").ok());
}

TEST(HubTest, PathsAreEscapedInUrls) {
  EXPECT_EQ(FileUrl({.endpoint = "https://h", .repository = "a/b"}, "c", "s p/x#1?.json"),
            "https://h/a/b/resolve/c/s%20p/x%231%3F.json");
}

}  // namespace
}  // namespace sluice::cli
