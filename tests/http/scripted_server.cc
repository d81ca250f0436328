// inferd's HTTP server with a scripted model: agents can be tried through whole turns, tool calls included,
// without a model that would follow them.
//
// usage: scripted_server RULES.json TEMPLATE.jinja TOKENIZER_FOLDER [HOST:PORT]
//
// RULES.json: [{"when": "text", "answer": "text"}, ...]. A request is answered by the first rule whose "when"
// its prompt contains (no "when": always), in pieces of a few characters; the dialect of calls is the
// template's. Prints the address, then a line for each request; ends by a signal.
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_io.h"
#include "common/base/status.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "daemon/http/http_server.h"
#include "inferd/http/openai_endpoint.h"
#include "inferd/serving/server_state.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "tests/support/fakes/fake_engine.h"

namespace sluice::inferd {
namespace {

constexpr size_t kPieceBytes = 5;
constexpr uint64_t kMaxFileBytes = 16 << 20;
constexpr uint32_t kContext = 200000;

struct Rule {
  std::string when;
  std::string answer;
};

absl::StatusOr<std::vector<Rule>> ReadRules(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxFileBytes));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no list of rules"));
  }
  std::vector<Rule> rules;
  for (const nlohmann::json& rule : json) {
    rules.push_back({rule.value("when", ""), rule.value("answer", "")});
  }
  return rules;
}

std::string AnswerTo(const std::vector<Rule>& rules, const std::string& prompt) {
  for (const Rule& rule : rules) {
    if (absl::StrContains(prompt, rule.when)) {
      return rule.answer;
    }
  }
  return "No rule is for this.";
}

// Sends `answer` as the engine would: at most the tokens that the request allows, each a piece of the text.
void Answer(FakeEngine* engine, const GenerateSpec& spec, const std::string& answer) {
  const auto prompt_tokens = static_cast<uint32_t>(spec.prompt.size());
  engine->Start(spec.request_id, {prompt_tokens, 0, 0}, 0);
  uint32_t tokens = 0;
  size_t at = 0;
  for (; at < answer.size() && tokens < spec.stopping.max_tokens; at += kPieceBytes) {
    engine->Emit(spec.request_id, {{7, -0.5f, {}}}, answer.substr(at, kPieceBytes));
    ++tokens;
  }
  FinishInfo end;
  end.reason = at < answer.size() ? FinishReason::kLength : FinishReason::kStop;
  end.usage = {prompt_tokens, tokens, 0};
  engine->Finish(spec.request_id, end);
}

absl::Status Serve(const std::string& rules_path, const std::string& template_path,
                   const std::string& tokenizer_folder, const std::string& address) {
  ASSIGN_OR_RETURN(const std::vector<Rule> rules, ReadRules(rules_path));
  ASSIGN_OR_RETURN(const std::string chat_template, ReadFile(template_path, kMaxFileBytes));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(tokenizer_folder));
  ASSIGN_OR_RETURN(const std::unique_ptr<ChatFormatter> chat,
                   ChatFormatter::Create(chat_template, *tokenizer));
  spdlog::logger log("scripted", std::make_shared<spdlog::sinks::stdout_sink_mt>());
  log.flush_on(spdlog::level::info);
  FakeEngine engine;
  ServerState state{ServerInfo()};
  state.SetEngine(&engine);
  LiveCalls calls;
  ServingContext context;
  context.state = &state;
  context.tokenizer = tokenizer.get();
  context.chat = chat.get();
  context.dialect = DialectOf(chat_template);
  context.model.id = "0123456789abcdef0123456789abcdef";
  context.model.name = "scripted";
  context.model.vocab = static_cast<uint32_t>(tokenizer->vocab_size());
  context.model.context = kContext;
  context.log = &log;
  context.calls = &calls;
  OpenAiEndpoint endpoint(context, [] { return std::string("# none\n"); });
  HttpServerOptions options;
  ASSIGN_OR_RETURN(const ListenAddress listen, ParseListenAddress(address));
  options.addresses = {listen};
  ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> server, HttpServer::Start(options, &endpoint));
  std::printf("http://127.0.0.1:%d\n", server->addresses()[0].port);
  std::fflush(stdout);
  for (;;) {
    const GenerateSpec spec = engine.NextGenerate();
    ASSIGN_OR_RETURN(const std::string prompt, tokenizer->Decode(spec.prompt, /*skip_special=*/false));
    Answer(&engine, spec, AnswerTo(rules, prompt));
  }
}

}  // namespace
}  // namespace sluice::inferd

int main(int argc, char** argv) {
  if (argc < 4 || argc > 5) {
    std::fprintf(stderr, "usage: scripted_server RULES.json TEMPLATE.jinja TOKENIZER_FOLDER [HOST:PORT]\n");
    return 2;
  }
  const absl::Status status =
      sluice::inferd::Serve(argv[1], argv[2], argv[3], argc > 4 ? argv[4] : "127.0.0.1:0");
  std::fprintf(stderr, "scripted_server: %s\n", status.ToString().c_str());
  return 1;
}
