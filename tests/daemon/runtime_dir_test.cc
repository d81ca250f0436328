#include "common/base/runtime_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

class RuntimeDirTest : public ::testing::Test {
 protected:
  RuntimeDirTest() {
    char name[] = "/tmp/sluice-test-XXXXXX";
    root_ = mkdtemp(name);
    unsetenv("XDG_RUNTIME_DIR");
    unsetenv("SLUICE_RUNTIME_DIR");
  }
  ~RuntimeDirTest() override {
    const std::string command = absl::StrCat("rm -rf ", root_);
    EXPECT_EQ(std::system(command.c_str()), 0);
  }
  void Use(const std::string& path) { setenv("SLUICE_RUNTIME_DIR", path.c_str(), 1); }

  std::string root_;
};

TEST_F(RuntimeDirTest, OwnVariableWinsOverXdgOverTmp) {
  EXPECT_EQ(RuntimeDirPath(), absl::StrCat("/tmp/sluice-", getuid()));
  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(RuntimeDirPath(), "/run/user/7/sluice");
  Use("/elsewhere");
  EXPECT_EQ(RuntimeDirPath(), "/elsewhere");
}

TEST_F(RuntimeDirTest, CreatesItForTheUserAlone) {
  Use(absl::StrCat(root_, "/a/b"));
  ASSERT_EQ(*EnsureRuntimeDir(), absl::StrCat(root_, "/a/b"));
  struct stat info {};
  ASSERT_EQ(stat(absl::StrCat(root_, "/a/b").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_TRUE(EnsureRuntimeDir().ok());
}

TEST_F(RuntimeDirTest, DirectoryThatOthersMayWriteToIsRefused) {
  const std::string path = absl::StrCat(root_, "/open");
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  Use(path);
  EXPECT_EQ(EnsureRuntimeDir().status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(RuntimeDirTest, LinkIsRefused) {
  const std::string path = absl::StrCat(root_, "/link");
  ASSERT_EQ(symlink(root_.c_str(), path.c_str()), 0);
  Use(path);
  EXPECT_EQ(EnsureRuntimeDir().status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(RuntimeDirTest, PathTooLongForASocketIsRefusedWithTheLimit) {
  Use(absl::StrCat(root_, "/", std::string(100, 'x')));
  const auto dir = EnsureRuntimeDir();
  EXPECT_EQ(dir.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(dir.status().message()), HasSubstr("107"));
}

}  // namespace
}  // namespace sluice
