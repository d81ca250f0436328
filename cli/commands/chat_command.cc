// `sluice chat`: an interactive conversation.

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/answer.h"
#include "cli/command_line.h"
#include "cli/launcher.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "common/base/status.h"
#include "common/base/utf8.h"

namespace sluice::cli {
namespace {

constexpr char kHelp[] =
    "/clear         forget the conversation, keep the system message\n"
    "/system TEXT   set the system message, without TEXT: remove it\n"
    "/undo          take the last question and its answer back\n"
    "/forget        forget the oldest question and its answer\n"
    "/exit          leave, as Ctrl-D does\n"
    "//TEXT         say /TEXT\n"
    "A line that ends with \\ goes on with the next. Ctrl-C stops an answer; at the prompt, twice leaves.\n";

struct Options {
  CommonOptions common;
  SamplingFlags sampling;
  std::string system;
  std::optional<std::string> prompt;
  std::optional<std::string> chat_template;
  std::vector<std::string> template_args;
  bool json = false;
};

// Prints a note that is not part of the conversation.
void Note(const std::string& text) {
  std::fprintf(stderr, "%s\n", Styled(text, Style::kDim, StderrIsTerminal()).c_str());
}

class Chat {
 public:
  Chat(const Options& options, Launcher* launcher, Interrupt* interrupt);
  ~Chat() { interrupt_->SetSoftHandler(nullptr); }

  // Runs turns until the input ends or the user leaves. On a terminal a failed question is reported and can
  // be asked again; otherwise the failure ends the run.
  absl::Status Run();
  Json Report() const { return AnswerJson(answer_).Set("messages", conversation_.Messages()); }

 private:
  enum class Next { kGoOn, kLeave };
  absl::StatusOr<Next> ReadQuestion(std::string* question);
  absl::StatusOr<Next> Command(const std::string& line);
  absl::Status Turn(const std::string& question);
  absl::Status Stream();
  void ExplainFailure(const absl::Status& status) const;
  void SayContextIsFull(uint32_t tokens) const;
  bool OnInterrupt();

  const Options& options_;
  Launcher* const launcher_;
  Interrupt* const interrupt_;
  const bool terminal_;
  api::ChatStreamRequest request_;
  Conversation conversation_;
  Answer answer_;  // the last answer
  LineReader reader_;
  CallStopper stopper_;                  // self-synchronised
  std::atomic<int> idle_interrupts_{0};  // since the last line
};

Chat::Chat(const Options& options, Launcher* launcher, Interrupt* interrupt)
    : options_(options),
      launcher_(launcher),
      interrupt_(interrupt),
      terminal_(StdinIsTerminal() && !options.prompt.has_value()),
      reader_(STDIN_FILENO) {
  options.sampling.Fill(request_.mutable_spec());
  conversation_.SetSystem(ReplaceIllFormedUtf8(options.system));
  if (terminal_) {
    interrupt_->SetSoftHandler([this] { return OnInterrupt(); });
  }
}

// Runs on the signal's thread.
bool Chat::OnInterrupt() {
  if (stopper_.Stop()) {
    return true;
  }
  const bool first = idle_interrupts_.fetch_add(1) == 0;
  reader_.Wake();
  return first;
}

absl::Status Chat::Run() {
  for (const std::string& argument : options_.template_args) {
    RETURN_IF_ERROR(AddTemplateArgument(argument, request_.mutable_options()));
  }
  if (options_.chat_template.has_value()) {
    ASSIGN_OR_RETURN(*request_.mutable_options()->mutable_chat_template(),
                     ReadWholeFile(*options_.chat_template));
  } else if (!launcher_->model().has_chat_template()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model ", launcher_->model().name(),
                     " has no chat template: give one with "
                     "--chat-template FILE, here or to `sluice pack`; `sluice run` continues plain text"));
  }
  if (options_.prompt.has_value()) {
    return Turn(ReplaceIllFormedUtf8(*options_.prompt));
  }
  // SIGTERM also wakes the reader.
  const ScopedInterruptCall wake(interrupt_, [this] { reader_.Wake(); });
  if (terminal_ && !options_.common.quiet) {
    Note("/help shows what can be said beside questions.");
  }
  while (true) {
    std::string question;
    ASSIGN_OR_RETURN(const Next next, ReadQuestion(&question));
    if (next == Next::kLeave) {
      return absl::OkStatus();
    }
    if (question.empty()) {
      continue;
    }
    const absl::Status status = Turn(question);
    RETURN_IF_ERROR(interrupt_->Check());
    if (!status.ok()) {
      if (!terminal_) {
        return status;
      }
      ExplainFailure(status);
    }
  }
}

// Reads a question; none if a command was given instead.
absl::StatusOr<Chat::Next> Chat::ReadQuestion(std::string* question) {
  question->clear();
  for (bool first = true;; first = false) {
    if (terminal_) {
      std::fputs(first ? "> " : "… ", stderr);
    }
    std::string line;
    ASSIGN_OR_RETURN(const LineReader::Event event, reader_.Read(&line));
    if (!terminal_) {
      RETURN_IF_ERROR(interrupt_->Check());
    }
    if (event == LineReader::Event::kEnd || interrupt_->requested()) {
      if (terminal_) {
        std::fputs("\n", stderr);
      }
      return Next::kLeave;
    }
    if (event == LineReader::Event::kWoken) {
      Note("\nCtrl-C once more, Ctrl-D or /exit leaves.");
      question->clear();
      return Next::kGoOn;
    }
    idle_interrupts_ = 0;
    line = ReplaceIllFormedUtf8(line);
    if (first && absl::StartsWith(line, "/") && !absl::StartsWith(line, "//")) {
      return Command(line);
    }
    if (first && absl::StartsWith(line, "//")) {
      line.erase(0, 1);
    }
    const bool more = !line.empty() && line.back() == '\\';
    question->append(line, 0, line.size() - (more ? 1 : 0));
    if (!more) {
      return Next::kGoOn;
    }
    question->push_back('\n');
  }
}

absl::StatusOr<Chat::Next> Chat::Command(const std::string& line) {
  const size_t space = line.find(' ');
  const std::string name = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
  if (name == "/exit" || name == "/quit") {
    return Next::kLeave;
  }
  if (name == "/help") {
    std::fputs(kHelp, stderr);
  } else if (name == "/clear") {
    conversation_.Clear();
    Note("The conversation is forgotten.");
  } else if (name == "/system") {
    conversation_.SetSystem(rest);
    Note(rest.empty() ? "There is no system message now." : "The system message is set.");
  } else if (name == "/undo") {
    Note(conversation_.TakeBack() ? "The last question is taken back." : "There is nothing to take back.");
  } else if (name == "/forget") {
    Note(conversation_.ForgetOldest() ? "The oldest question is forgotten." : "There is nothing to forget.");
  } else if (!terminal_) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is no command of chat; // begins a line with /"));
  } else {
    Note(absl::StrCat("'", name, "' is no command; /help shows them, // begins a line with /."));
  }
  return Next::kGoOn;
}

absl::Status Chat::Turn(const std::string& question) {
  conversation_.Ask(question);
  answer_ = Answer();
  const absl::Status status = Stream();
  const bool stopped = absl::IsCancelled(status) && !interrupt_->requested();
  if (!options_.json && !answer_.text.empty()) {
    RETURN_IF_ERROR(WriteStdout("\n"));
  }
  if (!status.ok() && (!stopped || answer_.text.empty())) {
    conversation_.TakeBack();
    if (stopped) {
      Note("[stopped; the question is taken back]");
      return absl::OkStatus();
    }
    return status;
  }
  conversation_.Answer(answer_.text);
  if (stopped) {
    Note("[stopped]");
    return absl::OkStatus();
  }
  if (!options_.json && !options_.common.quiet) {
    PrintStatistics(answer_);
  }
  const api::Usage& usage = answer_.finished.usage();
  if (usage.total_tokens() >= launcher_->model().context_tokens()) {
    SayContextIsFull(usage.total_tokens());
  }
  return absl::OkStatus();
}

absl::Status Chat::Stream() {
  request_.clear_messages();
  conversation_.Fill(request_.mutable_messages());
  return launcher_->client().ChatStream(
      request_, &stopper_, [this](const api::ChatStreamResponse& event) -> absl::Status {
        if (event.has_finished()) {
          answer_.finished = event.finished();
        }
        if (!event.has_delta()) {
          return absl::OkStatus();
        }
        answer_.Add(event.delta());
        return options_.json ? absl::OkStatus() : WriteStdout(event.delta().text());
      });
}

void Chat::ExplainFailure(const absl::Status& status) const {
  if (ReasonOf(status) == "CONTEXT_TOO_LONG") {
    Note(std::string(status.message()));
    SayContextIsFull(launcher_->model().context_tokens());
    return;
  }
  Note(absl::StrCat(absl::StatusCodeToString(status.code()), ": ", std::string(status.message()),
                    "\nThe question is taken back; it can be put again."));
}

void Chat::SayContextIsFull(uint32_t tokens) const {
  Note(
      absl::StrCat("The context of ", launcher_->model().context_tokens(), " tokens is full (", tokens,
                   "). /forget drops the oldest question, /clear all of them; --context N at the start makes "
                   "more room, up to the model's ",
                   launcher_->model().max_position(), "."));
}

absl::StatusOr<int> Converse(const CommandContext& context, const Options& o) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Launcher> launcher, Launcher::Launch(context, o.common, o.json));
  Chat chat(o, launcher.get(), context.interrupt);
  RETURN_IF_ERROR(chat.Run());
  return o.json ? PrintJson(chat.Report()) : kExitOk;
}

}  // namespace

int RunChat(const CommandContext& context, const std::vector<std::string>& args) {
  Options options;
  ArgParser parser(
      "sluice chat",
      "A conversation. Each line is a question, of standard input, too, when it is no terminal.");
  parser.Text("--system", &options.system, "TEXT of the system message")
      .Text("--prompt", &options.prompt, "TEXT: one question, then the end")
      .Text("--chat-template", &options.chat_template, "FILE: a Jinja template instead of the model's")
      .Texts("--template-arg", &options.template_args,
             "NAME=VALUE: a variable of the template, VALUE in JSON or a text; may be repeated");
  options.sampling.Declare(&parser, "what the context has room for");
  parser.Flag("--json", &options.json, "prints one JSON object at the end: the last answer and all messages");
  options.common.takes_served_name = true;
  options.common.Declare(&parser);
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  const absl::StatusOr<int> code = Converse(context, options);
  return code.ok() ? *code : Fail("sluice chat", code.status(), options.json);
}

}  // namespace sluice::cli
