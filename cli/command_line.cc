#include "cli/command_line.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdio>
#include <limits>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/size.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

// Layout for one screen: the option column fits the longest name, and lines stay below 110 columns.
constexpr size_t kHelpColumn = 32;

class Formatter : public CLI::Formatter {
 public:
  Formatter() { column_width(kHelpColumn); }
  // Prints the help as CLI11 does, but without hidden groups and without empty lines between groups.
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = make_description(app) + make_usage(app, name) + make_positionals(app);
    for (const std::string& group : app->get_groups()) {
      const auto options = app->get_options(
          [&](const CLI::Option* option) { return option->get_group() == group && option->nonpositional(); });
      const bool hidden = std::find(hidden_.begin(), hidden_.end(), group) != hidden_.end();
      if (!group.empty() && !options.empty() && (mode == CLI::AppFormatMode::All || !hidden)) {
        text += make_group(group, false, options);
      }
    }
    return mode == CLI::AppFormatMode::All || app->get_footer().empty() ? text
                                                                        : text + app->get_footer() + "\n";
  }
  void Hide(const std::string& group) { hidden_.push_back(group); }

  // Omits CLI11's type names: help texts name the value's placeholder where it is needed.
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_required() ? " (required)" : "";
  }

 private:
  std::vector<std::string> hidden_;
};

[[noreturn]] void Refuse(const std::string& names, const std::string& why) {
  throw CLI::ValidationError(absl::StrCat(names, ": ", why));
}

// Returns the long name of an option: the last of "-n,--tokens".
std::string LongName(const std::string& names) { return names.substr(names.rfind(',') + 1); }

}  // namespace

struct ArgParser::Impl {
  Impl(const std::string& command, const std::string& summary) : app(summary, command) {}
  CLI::App app;
  std::shared_ptr<Formatter> formatter = std::make_shared<Formatter>();
  CLI::Option* last = nullptr;
  std::string group = "Options";
  std::vector<std::string> one_of;

  // Parses `args`; throws like CLI11 unless exactly one of `one_of` was given.
  void Parse(const std::vector<std::string>& args) {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 expects reverse order
    const auto given = [this](const std::string& name) { return app.count(name) > 0; };
    if (!one_of.empty() && std::count_if(one_of.begin(), one_of.end(), given) != 1) {
      throw CLI::RequiredError(absl::StrCat("one of ", absl::StrJoin(one_of, " and ")));
    }
  }
  void Declared(CLI::Option* option) {
    option->group(group);
    last = option;
  }
};

ArgParser::ArgParser(const std::string& command, const std::string& summary)
    : impl_(std::make_unique<Impl>(command, summary)) {
  impl_->app.formatter(impl_->formatter);
  impl_->app.set_help_flag("-h,--help", "prints this and exits");
}

ArgParser::~ArgParser() = default;

ArgParser& ArgParser::Positional(const std::string& name, std::string* out, const std::string& help) {
  impl_->last = impl_->app.add_option(name, *out, help)->required();
  return *this;
}

ArgParser& ArgParser::Positionals(const std::string& name, std::vector<std::string>* out,
                                  const std::string& help) {
  impl_->last = impl_->app.add_option(name, *out, help);
  return *this;
}

ArgParser& ArgParser::Flag(const std::string& names, bool* out, const std::string& help) {
  impl_->Declared(impl_->app.add_flag(names, *out, help));
  return *this;
}

ArgParser& ArgParser::Text(const std::string& names, std::string* out, const std::string& help) {
  impl_->Declared(impl_->app.add_option_function<std::string>(
      names, [out](const std::string& v) { *out = v; }, help));
  return *this;
}

ArgParser& ArgParser::Text(const std::string& names, std::optional<std::string>* out,
                           const std::string& help) {
  impl_->Declared(impl_->app.add_option_function<std::string>(
      names, [out](const std::string& v) { *out = v; }, help));
  return *this;
}

ArgParser& ArgParser::Texts(const std::string& names, std::vector<std::string>* out,
                            const std::string& help) {
  impl_->Declared(impl_->app
                      .add_option_function<std::vector<std::string>>(
                          names, [out](const std::vector<std::string>& v) { *out = v; }, help)
                      ->type_size(1)
                      ->expected(1)
                      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll));
  return *this;
}

ArgParser& ArgParser::Choice(const std::string& names, const std::vector<std::string>& choices,
                             std::optional<std::string>* out, const std::string& help) {
  std::string list;
  for (const std::string& choice : choices) {
    absl::StrAppend(&list, list.empty() ? "" : "|", choice);
  }
  impl_->Declared(impl_->app.add_option_function<std::string>(
      names,
      [=](const std::string& v) {
        if (std::find(choices.begin(), choices.end(), v) == choices.end()) {
          Refuse(LongName(names), absl::StrCat("'", v, "' is none of ", list));
        }
        *out = v;
      },
      absl::StrCat(list, ": ", help)));
  return *this;
}

ArgParser& ArgParser::Number(const std::string& names, std::optional<uint64_t>* out, const std::string& help,
                             uint64_t least, uint64_t most) {
  impl_->Declared(impl_->app.add_option_function<std::string>(
      names,
      [=](const std::string& v) {
        uint64_t value = 0;
        if (!absl::SimpleAtoi(v, &value) || value < least || value > most) {
          Refuse(LongName(names),
                 most == UINT64_MAX
                     ? absl::StrCat("'", v, "' is no whole number from ", least, " up")
                     : absl::StrCat("'", v, "' is no whole number from ", least, " to ", most));
        }
        *out = value;
      },
      help));
  return *this;
}

ArgParser& ArgParser::Real(const std::string& names, std::optional<double>* out, const std::string& help,
                           double least, double most) {
  impl_->Declared(impl_->app.add_option_function<std::string>(
      names,
      [=](const std::string& v) {
        double value = 0;
        if (!absl::SimpleAtod(v, &value) || !std::isfinite(value) || value < least || value > most) {
          Refuse(LongName(names), absl::StrCat("'", v, "' is no number from ", least, " to ", most));
        }
        *out = value;
      },
      help));
  return *this;
}

ArgParser& ArgParser::Size(const std::string& names, std::optional<uint64_t>* out, const std::string& help) {
  impl_->Declared(impl_->app.add_option_function<std::string>(
      names,
      [=](const std::string& v) {
        const auto size = ParseSize(v);
        if (!size.ok()) {
          Refuse(LongName(names), std::string(size.status().message()));
        }
        *out = *size;
      },
      help));
  return *this;
}

ArgParser& ArgParser::Values(const std::string& names, bool repeats,
                             std::function<absl::Status(const std::vector<std::string>&)> take,
                             const std::string& help) {
  CLI::Option* option = impl_->app.add_option_function<std::vector<std::string>>(
      names,
      [take = std::move(take)](const std::vector<std::string>& texts) {
        if (const absl::Status taken = take(texts); !taken.ok()) {
          throw CLI::ValidationError(std::string(taken.message()));
        }
      },
      help);
  option->type_size(1)->expected(1);
  option->multi_option_policy(repeats ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::Throw);
  impl_->Declared(option);
  return *this;
}

ArgParser& ArgParser::TimeSpan(const std::string& names, std::optional<absl::Duration>* out,
                               const std::string& help) {
  impl_->Declared(impl_->app.add_option_function<std::string>(
      names,
      [=](const std::string& v) {
        const auto span = ParseTimeSpan(v);
        if (!span.ok()) {
          Refuse(LongName(names), std::string(span.status().message()));
        }
        *out = *span;
      },
      help));
  return *this;
}

ArgParser& ArgParser::RequireOneOf(const std::vector<std::string>& names) {
  impl_->one_of = names;
  return *this;
}

ArgParser& ArgParser::Required() {
  impl_->last->required();
  return *this;
}

ArgParser& ArgParser::Group(const std::string& title) {
  impl_->group = title;
  return *this;
}

ArgParser& ArgParser::HiddenGroup(const std::string& title, const std::string& hint) {
  impl_->formatter->Hide(title);
  impl_->app.set_help_all_flag("--help-all", "shows every option");
  impl_->app.footer(hint);
  return Group(title);
}

std::optional<int> ArgParser::Parse(const std::vector<std::string>& args) {
  try {
    impl_->Parse(args);
  } catch (const CLI::CallForHelp&) {
    std::fputs(impl_->app.help().c_str(), stdout);
    return kExitOk;
  } catch (const CLI::CallForAllHelp&) {
    std::fputs(impl_->app.help("", CLI::AppFormatMode::All).c_str(), stdout);
    return kExitOk;
  } catch (const CLI::Error& error) {
    return UsageError(error.what());
  }
  return std::nullopt;
}

absl::Status ArgParser::Fill(const std::vector<std::string>& args) {
  try {
    impl_->Parse(args);
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return absl::OkStatus();
}

bool ArgParser::Knows(const std::string& name) const {
  return impl_->app.get_option_no_throw(name) != nullptr;
}

int ArgParser::UsageError(const std::string& message) const {
  std::fprintf(stderr, "%s: %s\nTry '%s --help'.\n", impl_->app.get_name().c_str(), message.c_str(),
               impl_->app.get_name().c_str());
  return kExitUsage;
}

absl::StatusOr<std::vector<int64_t>> ParseNumberList(std::string_view text, const std::string& what,
                                                     int64_t least, int64_t most) {
  std::vector<int64_t> numbers;
  const absl::string_view view(text.data(), text.size());
  if (absl::StripAsciiWhitespace(view).empty()) {
    return numbers;
  }
  for (const absl::string_view entry : absl::StrSplit(view, ',')) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(entry, &value) || value < least || value > most) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": '", entry, "' is no whole number from ", least, " to ", most));
    }
    numbers.push_back(value);
  }
  return numbers;
}

absl::StatusOr<std::vector<int32_t>> ParseTokenIds(std::string_view text) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> numbers,
                   ParseNumberList(text, "token ids", 0, std::numeric_limits<int32_t>::max()));
  if (numbers.empty()) {
    return absl::InvalidArgumentError("token ids: the list is empty");
  }
  return std::vector<int32_t>(numbers.begin(), numbers.end());
}

std::vector<std::string> SplitList(std::string_view text) {
  return absl::StrSplit(absl::string_view(text.data(), text.size()), ',', absl::SkipWhitespace());
}

namespace {

constexpr uint64_t kLargestFile = 1ull << 30;  // for texts and lists of ids; models have their own readers

absl::StatusOr<std::string> ReadDescriptor(int fd, const std::string& path) {
  std::string bytes;
  char chunk[1 << 16];
  while (true) {
    const ssize_t n = read(fd, chunk, sizeof(chunk));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    }
    if (n == 0) {
      return bytes;
    }
    bytes.append(chunk, static_cast<size_t>(n));
    if (bytes.size() > kLargestFile) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": larger than ", FormatSize(kLargestFile)));
    }
  }
}

absl::Status WriteDescriptor(int fd, const std::string& bytes, const std::string& path) {
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t n = write(fd, bytes.data() + at, bytes.size() - at);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
    }
    at += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

std::string BinaryDir() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (n <= 0) {
    return ".";
  }
  const std::string_view whole(path, static_cast<size_t>(n));
  return std::string(whole.substr(0, whole.rfind('/')));
}

int Fail(const std::string& command, const absl::Status& status, bool json) {
  const std::string code = absl::StatusCodeToString(status.code());
  std::fprintf(stderr, "%s: %s: %s\n", command.c_str(), code.c_str(), std::string(status.message()).c_str());
  if (json) {
    PrintJson(Json::Object().Set(
        "error", Json::Object().Set("code", code).Set("message", std::string(status.message()))));
  }
  return kExitFailed;
}

int PrintJson(const Json& value) {
  const absl::Status written = WriteStdout(absl::StrCat(value.Dump(), "\n"));
  if (!written.ok()) {
    std::fprintf(stderr, "sluice: %s\n", std::string(written.message()).c_str());
    return kExitFailed;
  }
  return kExitOk;
}

absl::Status WriteStdout(const std::string& text) {
  return WriteDescriptor(STDOUT_FILENO, text, "standard output");
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  if (path == "-") {
    return ReadDescriptor(STDIN_FILENO, "standard input");
  }
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  }
  const absl::Cleanup closer = [fd] { close(fd); };
  return ReadDescriptor(fd, path);
}

}  // namespace sluice::cli
