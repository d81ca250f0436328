#include "tests/fuzz/client_targets.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "daemon/http/request_reader.h"
#include "inferd/grammar/grammar_compiler.h"
#include "inferd/http/openai_endpoint.h"
#include "inferd/serving/server_state.h"
#include "spdlog/logger.h"
#include "spdlog/sinks/null_sink.h"

namespace sluice {
namespace {

using fuzz::Require;
using fuzz::Text;

// An engine that keeps what it accepts until Run(), which answers all of it on the caller's thread.
class PromptEngine final : public inferd::EngineApi {
 public:
  explicit PromptEngine(uint32_t vocab) : logits_(vocab) {}

  // False: there was nothing to answer.
  bool Run() {
    if (generates_.empty() && scores_.empty()) return false;
    while (!generates_.empty()) {
      auto [spec, sink] = std::move(generates_.front());
      generates_.pop_front();
      Answer(spec, sink.get());
    }
    while (!scores_.empty()) {
      auto [spec, sink] = std::move(scores_.front());
      scores_.pop_front();
      const std::vector<int32_t> best(1);
      const std::vector<float> target(spec.targets.empty() ? 0 : 1);
      for (uint32_t row = 0; row < spec.input.size(); ++row) {
        sink->OnRows(row, best, target, spec.want_logits ? logits_ : std::vector<float>());
      }
      sink->OnFinished({}, {});
    }
    return true;
  }

  absl::Status Generate(inferd::GenerateSpec spec, std::shared_ptr<inferd::RequestSink> sink) override {
    Require(!spec.prompt.empty(), "the engine gets no empty prompt");
    for (const int32_t id : spec.prompt) {
      Require(id >= 0 && static_cast<size_t>(id) < logits_.size(), "a prompt's ids are the vocabulary's");
    }
    if (std::any_of(generates_.begin(), generates_.end(),
                    [&](const auto& other) { return other.first.request_id == spec.request_id; })) {
      return ReasonError(absl::StatusCode::kAlreadyExists, "REQUEST_EXISTS", "the request lives");
    }
    generates_.emplace_back(std::move(spec), std::move(sink));
    return absl::OkStatus();
  }
  absl::Status Score(inferd::ScoreSpec spec, std::shared_ptr<inferd::ScoreSink> sink) override {
    scores_.emplace_back(std::move(spec), std::move(sink));
    return absl::OkStatus();
  }
  absl::Status Calibrate(inferd::CalibrationSpec, std::shared_ptr<inferd::CalibrationSink>) override {
    return absl::UnimplementedError("no calibration");
  }
  absl::Status Cancel(const std::string& request_id) override {
    for (auto at = generates_.begin(); at != generates_.end(); ++at) {
      if (at->first.request_id == request_id) {
        const std::shared_ptr<inferd::RequestSink> sink = std::move(at->second);
        generates_.erase(at);
        sink->OnError(absl::CancelledError("cancelled"));
        return absl::OkStatus();
      }
    }
    return absl::NotFoundError("no such request");
  }
  inferd::EngineStats Stats() const override { return {}; }
  std::vector<inferd::LayerSparsity> Sparsity() const override { return {}; }
  std::vector<inferd::LayerStats> Layers() const override { return {}; }
  absl::Status Health() const override { return absl::OkStatus(); }
  void StartDrain() override {}
  absl::Status CheckQueueSpace(const std::string&) override { return absl::OkStatus(); }
  void SetQueueLimits(const inferd::QueueLimits&) override {}

 private:
  // A thought, a text and a call: the parts that parsers and writers distinguish.
  static void Answer(const inferd::GenerateSpec& spec, inferd::RequestSink* sink) {
    inferd::FinishInfo end;
    end.usage.prompt_tokens = static_cast<uint32_t>(spec.prompt.size());
    sink->OnStarted(end.usage, 0);
    for (const std::string_view piece :
         {"<think>hm</thi", "nk>t\xC3\xA9xt", "<tool_call>{\"name\": \"f\", \"argu",
          "ments\": {\"a\": 1}}</tool_call>"}) {
      inferd::TokenOut token{static_cast<int32_t>(end.usage.completion_tokens++), -0.5f, {}};
      if (spec.logprobs > 0) token.candidates.push_back({token.token_id, -0.5f});
      sink->OnTokens({&token, 1}, piece);
    }
    sink->OnFinished(end);
  }

  const std::vector<float> logits_;
  std::deque<std::pair<inferd::GenerateSpec, std::shared_ptr<inferd::RequestSink>>> generates_;
  std::deque<std::pair<inferd::ScoreSpec, std::shared_ptr<inferd::ScoreSink>>> scores_;
};

// The answer to one request, checked while it is made.
class CheckedExchange final : public HttpExchange {
 public:
  void SetObserver(std::shared_ptr<HttpObserver> observer) override { observer_ = std::move(observer); }
  void Wake() override { woken_ = true; }
  void Answer(HttpResponse answer) override {
    if (done_) return;
    Require(!begun_, "a stream is no whole answer");
    status_ = answer.status;
    if (answer.content_type == "application/json" && !answer.body.empty()) {
      Require(nlohmann::json::accept(answer.body), "a JSON answer is JSON");
    }
    CheckHead(answer);
    Over();
  }
  void Begin(HttpResponse head) override {
    Require(!begun_ && !done_, "an answer begins once");
    begun_ = true;
    status_ = head.status;
    CheckHead(head);
  }
  void Write(std::string part) override {
    Require(begun_ && !done_, "a stream's parts lie between its ends");
    stream_ += part;
    written_ = true;
  }
  void End(bool) override {
    if (done_) return;
    CheckEvents();
    Over();
  }

  // Delivers what was said; false: nothing was.
  bool Deliver() {
    const std::shared_ptr<HttpObserver> observer = observer_;
    if (observer == nullptr || (!woken_ && !written_)) return false;
    if (std::exchange(written_, false)) observer->OnWritten();
    if (std::exchange(woken_, false)) observer->OnReady();
    return true;
  }
  bool done() const { return done_; }
  int status() const { return status_; }

 private:
  void CheckHead(const HttpResponse& answer) const {
    Require(answer.status >= 200 && answer.status < 600, "a status is one");
    for (const auto& [name, value] : answer.headers) {
      Require((name + value).find_first_of("\r\n") == std::string::npos, "a header is one line");
    }
  }
  void CheckEvents() const {
    const std::vector<std::string> lines = absl::StrSplit(stream_, '\n');
    for (const std::string& line : lines) {
      if (absl::StartsWith(line, "data: ") && line != "data: [DONE]") {
        Require(nlohmann::json::accept(line.substr(6)), "an event's data is JSON");
      } else {
        Require(line.empty() || line[0] == ':' || line == "data: [DONE]" || absl::StartsWith(line, "event: "),
                "a stream has events alone");
      }
    }
  }
  void Over() {
    done_ = true;
    if (const auto observer = std::exchange(observer_, nullptr); observer != nullptr) {
      observer->OnEnded(/*disconnected=*/false);
    }
  }

  std::shared_ptr<HttpObserver> observer_;
  bool woken_ = false;
  bool written_ = false;
  bool begun_ = false;
  bool done_ = false;
  int status_ = 0;
  std::string stream_;
};

constexpr char kTemplate[] =
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}<|im_start|>{{ m.role "
    "}}\n"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{# </think> #}";

// The endpoint of a model with a chat template and tools.
class FuzzedEndpoint {
 public:
  FuzzedEndpoint()
      : log_("fuzz", std::make_shared<spdlog::sinks::null_sink_mt>()),
        tokenizer_(*Tokenizer::Load("tests/common/text/data/bytebpe_qwen2")),
        chat_(*ChatFormatter::Create(kTemplate, *tokenizer_)),
        engine_(static_cast<uint32_t>(tokenizer_->vocab_size())) {
    state_.SetEngine(&engine_);
    context_.state = &state_;
    context_.tokenizer = tokenizer_.get();
    context_.chat = chat_.get();
    context_.dialect = inferd::DialectOf(kTemplate);
    context_.model.id = "0123456789abcdef0123456789abcdef";
    context_.model.name = "tiny";
    context_.model.vocab = static_cast<uint32_t>(tokenizer_->vocab_size());
    context_.model.context = 512;
    context_.log = &log_;
    context_.calls = &calls_;
    endpoint_ = std::make_unique<inferd::OpenAiEndpoint>(context_, [] { return std::string("# none\n"); });
  }

  // Returns the answer's status.
  int Ask(HttpRequest request) {
    const auto exchange = std::make_shared<CheckedExchange>();
    endpoint_->Handle(std::move(request), exchange);
    for (bool moved = true; moved;) {
      moved = engine_.Run();
      moved = exchange->Deliver() || moved;
    }
    Require(exchange->done(), "every request is answered");
    Require(calls_.calls() == 0 && calls_.unsent_bytes() == 0, "nothing of an answered call is left");
    return exchange->status();
  }

 private:
  spdlog::logger log_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  const std::unique_ptr<ChatFormatter> chat_;
  PromptEngine engine_;
  inferd::LiveCalls calls_;
  inferd::ServerState state_{inferd::ServerInfo()};
  inferd::ServingContext context_;
  std::unique_ptr<inferd::OpenAiEndpoint> endpoint_;
};

FuzzedEndpoint& Endpoint() {
  static auto* const endpoint = new FuzzedEndpoint;
  return *endpoint;
}

bool PostBody(const char* path, const uint8_t* data, size_t size) {
  HttpRequest request;
  request.method = "POST";
  request.path = path;
  request.body = std::string(Text(data, size));
  request.client = "tcp";
  return Endpoint().Ask(std::move(request)) == 200;
}

// Requests of a connection whose bytes come in the parts [0, cut) and [cut, end), and the reason for its end.
struct ReadRequests {
  std::vector<HttpRequest> requests;
  int problem = 0;
};

constexpr uint64_t kMaxBody = 1 << 16;

ReadRequests ReadInParts(std::string_view bytes, size_t cut) {
  ReadRequests read;
  RequestReader reader;
  const HeadPolicy policy{.local_names_only = true, .cors_origins = {"http://a.example"}};
  for (const std::string_view part : {bytes.substr(0, cut), bytes.substr(cut)}) {
    reader.Append(part.data(), part.size());
    while (true) {
      bool fresh = false;
      const bool head = !reader.head_done();
      const RequestReader::Step step = head ? reader.ReadHead(policy, &fresh) : reader.ReadBody();
      if (step == RequestReader::Step::kMore) break;
      if (step == RequestReader::Step::kRefused) {
        read.problem = reader.problem().status;
        Require(read.problem >= 400 && read.problem < 600, "a refusal has a status");
        return read;
      }
      if (head) {
        const std::string answer = AnswerHead({}, reader.head(), reader.head().keep_alive, 0);
        Require(answer.find("\r\n\r\n") == answer.size() - 4, "an answer has one head");
        if (reader.content_length().value_or(0) > kMaxBody) {  // as HttpConnection does
          read.problem = 413;
          return read;
        }
        reader.AllowBody(kMaxBody);
        continue;
      }
      read.requests.push_back(reader.head().request);
      read.requests.back().body = reader.TakeBody();
      Require(read.requests.back().body.size() <= kMaxBody, "a body within its limit");
      reader.End();
    }
  }
  return read;
}

// Compiles a constraint and follows some of the answers that it allows.
bool CompilesAndMatches(inferd::GrammarSpec::Kind kind, std::string_view text) {
  constexpr int32_t kEnd = 256 + 2;
  static inferd::GrammarVocabulary* const vocabulary = [] {
    auto* made = new inferd::GrammarVocabulary;
    for (int byte = 0; byte < 256; ++byte) made->tokens.emplace_back(1, static_cast<char>(byte));
    made->tokens.insert(made->tokens.end(), {"\":", "ab", ""});
    made->size = static_cast<uint32_t>(made->tokens.size());
    made->end_ids = {kEnd};
    return made;
  }();
  static auto* const compiler = new inferd::GrammarCompiler(vocabulary);
  const auto source = inferd::SourceOf({kind, std::string(text), {}, {}, {}});
  if (!source.ok()) return false;
  const auto compiled = compiler->Compile(*source);
  if (!compiled.ok()) {
    Require(absl::IsInvalidArgument(compiled.status()) || absl::IsResourceExhausted(compiled.status()),
            "a grammar is refused as invalid or as too large");
    return false;
  }
  const auto matcher = inferd::GrammarMatcher::Create(*compiled, vocabulary->end_ids);
  Require(matcher.ok(), "a compiled grammar has a matcher");
  size_t pick = text.size();
  for (int step = 0; step < 12; ++step) {
    std::vector<uint32_t> mask;
    if (!(*matcher)->FillMask(&mask).ok()) return false;
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < kEnd; ++id) {
      if ((mask[id / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    if (allowed.empty()) break;
    pick = pick * 31 + 7;
    Require((*matcher)->Accept(allowed[pick % allowed.size()]).ok(), "an allowed token is accepted");
  }
  return true;
}

std::string Request(const std::string& method, const std::string& path, const std::string& body,
                    const std::string& fields = "") {
  return absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(),
                      "\r\n", fields, "\r\n", body);
}

std::vector<std::string> HttpSeeds() {
  return {
      Request("POST", "/v1/chat/completions",
              R"({"messages":[{"role":"user","content":"Hi"}],"stream":true,"max_tokens":3})") +
          Request("GET", "/v1/models/tiny", "", "Origin: http://a.example\r\nX-Request-Id: x1\r\n"),
      "\r\nPOST /tokenize HTTP/1.1\r\nHost: 127.0.0.1:80\r\nTransfer-Encoding: chunked\r\nExpect: "
      "100-continue\r\n\r\n"
      "e;x=y\r\n{\"content\":\"a\"\r\n1\r\n}\r\n0\r\nTrailer: t\r\n\r\n"
      "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
      Request("POST", "/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":"Hi"}]})",
              "Content-Type: application/json\r\nAuthorization: Bearer k\r\n"),
      Request("POST", "/apply-template", R"({"messages":[{"role":"user","content":"Hi"}]})"),
      Request("POST", "/detokenize", R"({"tokens":[1,2,3]})"),
      "OPTIONS /v1/models HTTP/1.1\r\nHost: [::1]\r\nOrigin: http://a.example\r\n"
      "Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n",
      "GET http://localhost/%76%31/models/?a=%00 HTTP/1.1\r\nHost: a.localhost\r\n\r\n",
  };
}

std::vector<std::string> ChatSeeds() {
  return {
      R"({"model":"tiny","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"é"},{"type":"text","text":"b"}]}],"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"n":2,"seed":3,"temperature":0.5,"top_p":0.9,"top_k":4,"min_p":0.1,"stop":["x","y"],"logprobs":true,"top_logprobs":2,"max_completion_tokens":9,"logit_bias":{"5":-1.5},"presence_penalty":0.1})",
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},{"role":"tool","tool_call_id":"c1","content":"1"}],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},"strict":true}}],"tool_choice":{"type":"function","function":{"name":"f"}},"parallel_tool_calls":false})",
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"so"}],"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"},"strict":true}},"continue_final_message":true,"add_generation_prompt":false,"chat_template_kwargs":{"enable_thinking":false},"timeout":1.5})",
  };
}

std::vector<std::string> CompletionsSeeds() {
  return {
      R"({"prompt":["a",[1,2,3]],"max_tokens":2,"echo":true,"logprobs":2,"n":2,"best_of":2,"stop":"z","suffix":null,"user":"u"})",
      R"({"prompt":"ab","max_tokens":0,"echo":true,"logprobs":1})",
      R"({"prompt":[5,6],"stream":true,"guided_choice":["a","b"],"stop_token_ids":[7],"cache_prompt":true,"return_tokens":true})",
  };
}

std::vector<std::string> ResponsesSeeds() {
  return {
      R"({"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"1"},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"r"}]}],"instructions":"i","tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":false},{"type":"custom","name":"g"},{"type":"local_shell"}],"tool_choice":"auto","stream":true,"max_output_tokens":5,"store":false,"metadata":{"k":"v"}})",
      R"({"input":"a","text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}},"reasoning":{"effort":"low"},"temperature":0,"include":["message.output_text.logprobs"],"top_logprobs":1})",
  };
}

std::vector<std::string> MessagesSeeds() {
  return {
      R"({"model":"tiny","max_tokens":5,"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"x"},{"type":"text","text":"b"},{"type":"tool_use","id":"u","name":"f","input":{"a":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"u","content":[{"type":"text","text":"1"}],"is_error":false}]}],"tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],"tool_choice":{"type":"any","disable_parallel_tool_use":true},"stream":true,"stop_sequences":["z"],"metadata":{"user_id":"u"},"thinking":{"type":"enabled","budget_tokens":1024}})",
      R"({"max_tokens":2,"messages":[{"role":"user","content":"a"}],"temperature":1,"top_k":3,"top_p":0.5})",
  };
}

std::vector<std::string> SchemaSeeds() {
  return {
      R"({"type":"object","properties":{"a":{"type":"string","pattern":"[a-z]+"},"b":{"enum":[1,"x",null]},"c":{"type":"array","items":{"$ref":"#/$defs/d"},"minItems":1,"maxItems":3}},"required":["a"],"additionalProperties":false,"$defs":{"d":{"type":"integer","minimum":-5,"maximum":70}}})",
      R"({"anyOf":[{"type":"string","maxLength":40},{"type":"array","prefixItems":[{"type":"boolean"},{"const":2}]},{"type":["null","number"]}]})",
  };
}

std::vector<std::string> RegexSeeds() {
  return {"(?:[a-f\\d]{2,4}|x+?)(y|\\.z)*[^q-s]", "^\\w+\\s?(a|bc){0,3}\\u00e9[\\x41-\\x5a\\n]$"};
}

std::vector<std::string> EbnfSeeds() {
  return {
      "root ::= item (\",\" item)* \"x\"{2,5}\nitem ::= [a-z]+ | \"(\" root \")\" | \"\\u00e9\" # c\n",
      "root ::= (\"a\" | b)? [^x\\n]+\nb ::= \"\" | b \"c\"\n",
  };
}

}  // namespace

bool FuzzHttp(const uint8_t* data, size_t size) {
  const std::string_view bytes = Text(data, size);
  ReadRequests read = ReadInParts(bytes, size);
  const ReadRequests split = ReadInParts(bytes, size / 2);
  Require(read.problem == split.problem && read.requests.size() == split.requests.size(),
          "the split of the bytes has no effect");
  for (size_t i = 0; i < read.requests.size(); ++i) {
    Require(
        read.requests[i].path == split.requests[i].path && read.requests[i].body == split.requests[i].body,
        "the split of the bytes changes no request");
    Endpoint().Ask(std::move(read.requests[i]));
  }
  return read.problem == 0 && !read.requests.empty();
}

bool FuzzChatBody(const uint8_t* data, size_t size) { return PostBody("/v1/chat/completions", data, size); }
bool FuzzCompletionsBody(const uint8_t* data, size_t size) { return PostBody("/v1/completions", data, size); }
bool FuzzResponsesBody(const uint8_t* data, size_t size) { return PostBody("/v1/responses", data, size); }
bool FuzzMessagesBody(const uint8_t* data, size_t size) { return PostBody("/v1/messages", data, size); }

bool FuzzJsonSchema(const uint8_t* data, size_t size) {
  return CompilesAndMatches(inferd::GrammarSpec::Kind::kJsonSchema, Text(data, size));
}
bool FuzzGrammarRegex(const uint8_t* data, size_t size) {
  return CompilesAndMatches(inferd::GrammarSpec::Kind::kRegex, Text(data, size));
}
bool FuzzEbnf(const uint8_t* data, size_t size) {
  return CompilesAndMatches(inferd::GrammarSpec::Kind::kGrammar, Text(data, size));
}

std::vector<FuzzTarget> ClientTargets() {
  return {
      {"http", FuzzHttp, HttpSeeds, 10'000},
      {"chat_body", FuzzChatBody, ChatSeeds, 4000},
      {"completions_body", FuzzCompletionsBody, CompletionsSeeds, 4000},
      {"responses_body", FuzzResponsesBody, ResponsesSeeds, 4000},
      {"messages_body", FuzzMessagesBody, MessagesSeeds, 4000},
      {"json_schema", FuzzJsonSchema, SchemaSeeds, 500},
      {"grammar_regex", FuzzGrammarRegex, RegexSeeds, 500},
      {"ebnf", FuzzEbnf, EbnfSeeds, 500},
  };
}

}  // namespace sluice
