// `sluice logits`: writes teacher-forced logits of given token ids to a safetensors file.

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/answer.h"
#include "cli/command_line.h"
#include "cli/launcher.h"
#include "cli/output_files.h"
#include "cli/terminal.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

struct Options {
  CommonOptions common;
  std::string token_ids_file;
  std::string out;
  bool json = false;
};

absl::StatusOr<int> Logits(const CommandContext& context, const Options& o) {
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(o.token_ids_file));
  const absl::StatusOr<std::vector<int32_t>> ids = TokenIdsFromJson(text);
  RETURN_IF_ERROR(Annotate(ids.status(), o.token_ids_file));
  if (ids->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(o.token_ids_file, ": the array is empty"));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Launcher> launcher, Launcher::Launch(context, o.common, o.json));
  const uint64_t vocab = launcher->model().vocab_size();
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                   SafetensorsWriter::Create(o.out, "logits", ids->size(), vocab));
  const absl::Time start = SteadyNow();
  Progress progress("logits", ProgressUnit::kTokens, o.common.quiet);
  ScoreTask task;
  task.input = *ids;
  task.want_logits = true;
  RETURN_IF_ERROR(Score(&launcher->client(), task, vocab, [&](const ScoredRows& rows) -> absl::Status {
    RETURN_IF_ERROR(writer->WriteRows(rows.first, rows.logits));
    progress.Update(rows.first + rows.argmax.size(), ids->size());
    return absl::OkStatus();
  }));
  progress.Finish();
  RETURN_IF_ERROR(writer->Finish());
  if (o.json) {
    return PrintJson(Json::Object().Set("tokens", ids->size()));
  }
  RETURN_IF_ERROR(WriteStdout(absl::StrFormat("%s: logits f32 [%d, %d], %.1f s\n", o.out, ids->size(), vocab,
                                              absl::ToDoubleSeconds(SteadyNow() - start))));
  return kExitOk;
}

}  // namespace

int RunLogits(const CommandContext& context, const std::vector<std::string>& args) {
  Options options;
  ArgParser parser("sluice logits", "Writes the logits after each of given tokens to a safetensors file.");
  parser
      .Text("--token-ids-file", &options.token_ids_file, "F: a JSON array of token ids; - is standard input")
      .Required()
      .Text("--out", &options.out, "FILE: safetensors with `logits` f32 [tokens, vocabulary]")
      .Required()
      .Flag("--json", &options.json, "prints {\"tokens\": N}");
  options.common.Declare(&parser);
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  const absl::StatusOr<int> code = Logits(context, options);
  return code.ok() ? *code : Fail("sluice logits", code.status(), options.json);
}

}  // namespace sluice::cli
