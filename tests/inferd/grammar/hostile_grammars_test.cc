// Hostile constraints: each ends with an answer or a refusal, without invalid memory accesses.
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "inferd/grammar/grammar_manager.h"
#include "inferd/grammar/schema_check.h"
#include "tests/inferd/grammar/grammar_testing.h"

namespace sluice::inferd {
namespace {

std::string Repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) {
    all += text;
  }
  return all;
}

class HostileGrammarsTest : public testing::Test {
 protected:
  HostileGrammarsTest() : language_(kTokenizers[1]) {}

  // Compiles, and on success generates a few tokens.
  void Try(const GrammarSpec& spec) {
    auto matcher = language_.Begin(spec);
    if (!matcher.ok()) {
      EXPECT_TRUE(absl::IsInvalidArgument(matcher.status()) || absl::IsResourceExhausted(matcher.status()))
          << matcher.status();
      return;
    }
    for (int step = 0; step < 20; ++step) {
      const std::vector<uint32_t> mask = MaskOf(matcher->get());
      std::vector<int32_t> next;
      for (size_t id = 0; id < language_.vocabulary().size; ++id) {
        if (Allows(mask, static_cast<int32_t>(id)) && static_cast<int32_t>(id) != language_.end()) {
          next.push_back(static_cast<int32_t>(id));
        }
      }
      if (next.empty()) {
        return;
      }
      ASSERT_TRUE((*matcher)->Accept(next[random_() % next.size()]).ok()) << spec.text.substr(0, 200);
    }
  }

  GrammarLanguage language_;
  std::mt19937 random_{5};
};

TEST_F(HostileGrammarsTest, Grammars) {
  for (const std::string& grammar : {
           std::string("root ::= root"),
           std::string("root ::= root root"),
           std::string("root ::= root root | \"a\" | \"\""),
           std::string("root ::= a\na ::= b\nb ::= a"),
           std::string("root ::= (root)* | \"\""),
           std::string("root ::= ((\"a\"*)*)*"),
           std::string("root ::= (\"\"*)*"),
           std::string("root ::= \"\""),
           std::string("root ::= [b-a]"),
           std::string("root ::= []"),
           std::string("root ::= [^]*"),
           std::string("root ::= \"a\"{0}"),
           std::string("root ::= \"a\"{3,2}"),
           std::string("root ::= \"a\"{10000}"),
           std::string("root ::= (\"a\"{1,10000}){1,10000}"),
           std::string("root ::= \"a\"{99999999999999999999}"),
           std::string("root ::= \"a\"{0,2147483648}"),
           std::string("root ::= \"\\xff\\xfe\""),
           std::string("root ::= \"\\uD800\""),
           std::string("root ::= [\\U0010FFFF-\\U7FFFFFFF]"),
           std::string("root ::= \"\xc3\x28\""),
           std::string("root ::= \"a\0b\"", 16),
           std::string("root ::= Token(0) Token(99999999)"),
           std::string("root ::= Token(-1)"),
           std::string("root ::= TagDispatch((\"a\", root), loop_after_dispatch=true)"),
           std::string("root ::= Regex(\"(((((a*)*)*)*)*)*\")"),
           std::string("root ::= \"a\" (= \"b\")"),
           std::string("::="),
           std::string("root ::="),
           "root ::= " + Repeated("(", 50000) + "\"a\"" + Repeated(")", 50000),
           "root ::= " + Repeated("(", 900) + "\"a\"" + Repeated(")", 900),
           "root ::= " + Repeated("\"a\" | ", 10000) + "\"b\"",
           "root ::= \"" + Repeated("a", 100000) + "\"",
           "root ::= \"" + Repeated("a", 200000) + "\"",
       }) {
    Try(Gbnf(grammar));
  }
}

TEST_F(HostileGrammarsTest, Regexes) {
  for (const std::string& regex : {
           std::string("(a*)*"),
           std::string("((a+)+)+$"),
           std::string("(a|a)*(a|a)*b"),
           std::string("(.*a){12}"),
           std::string("[ab]*a[ab]{14}"),
           std::string("a{10000}"),
           std::string("(a{100}){100}"),
           std::string("((a{1,99}){1,99}){1,99}"),
           std::string("(((a{1,10000}){1,10000}){1,10000}){1,10000}"),
           std::string("a{10001}"),
           std::string("a{99999999999999999999999}"),
           std::string("a{,3}"),
           std::string("[\\x00-\\xff]{3}"),
           std::string("\\u{110000}"),
           std::string("\\"),
           std::string("[\\"),
           std::string("(?"),
           std::string("(?P<n>a)"),
           std::string("^*$"),
           std::string("|"),
           std::string("()"),
           std::string("\xff"),
           std::string("\xf4\x90\x80\x80"),
           Repeated("(", 20000) + "a" + Repeated(")", 20000),
           Repeated("(a|", 3000) + "b" + Repeated(")", 3000),
           Repeated("a?", 500) + Repeated("a", 500),
           Repeated("[^a]", 2000),
       }) {
    Try(Regex(regex));
    // The same as a pattern of a schema.
    std::string escaped;
    for (const char c : regex) {
      escaped += c == '\\' || c == '"' ? std::string("\\") + c : std::string(1, c);
    }
    Try(Schema(R"({"type": "string", "pattern": ")" + escaped + "\"}"));
  }
}

TEST_F(HostileGrammarsTest, Schemas) {
  std::string deep = R"({"type": "null"})";
  std::string refs = R"({"$ref": "#/$defs/a0", "$defs": {)";
  std::string wide = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 30; ++i) {
    deep = R"({"anyOf": [{"type": "array", "items": )" + deep + "}]}";
  }
  for (int i = 0; i < 500; ++i) {
    refs += absl::StrCat(i == 0 ? "" : ",", "\"a", i, R"(": {"$ref": "#/$defs/a)", (i + 1) % 500, "\"}");
    wide +=
        absl::StrCat(i == 0 ? "" : ",", "\"p", i, R"(": {"type": ["string", "number", "array", "object"]})");
  }
  for (const std::string& schema : {
           std::string(R"({"$ref": "#"})"),
           std::string(R"({"$ref": "#/$ref"})"),
           std::string(R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})"),
           std::string(R"({"type": "array", "items": {"$ref": "#"}})"),
           std::string(R"({"type": "array", "minItems": 1, "items": {"$ref": "#"}})"),
           std::string(R"({"type": "array", "minItems": 1000000})"),
           std::string(
               R"({"type": "array", "maxItems": 1000000, "items": {"type": "array", "maxItems": 1000000}})"),
           std::string(R"({"type": "string", "minLength": 1000000})"),
           std::string(R"({"type": "string", "maxLength": 1000000})"),
           std::string(
               R"({"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807})"),
           std::string(R"({"type": "integer", "minimum": 1e300})"),
           std::string(R"({"type": "number", "minimum": -1e300, "maximum": 1e-300})"),
           std::string(R"({"type": "integer", "multipleOf": 1024})"),
           std::string(R"({"type": "integer", "multipleOf": 0})"),
           std::string(R"({"properties": {"": {}, "\u0000": {}, "\"\\": {}, "\ud83d\ude00": {}}})"),
           std::string(R"({"required": [1], "properties": {}})"),
           std::string(R"({"enum": [[[[[[1]]]]], {"a": {"b": {}}}]})"),
           std::string(R"({"type": "string", "format": 3})"),
           std::string(R"({"type": "string", "pattern": 3})"),
           std::string("{\"const\": \"\xff\"}"),
           deep,
           refs + "}}",
           wide + "}}",
       }) {
    Try(Schema(schema));
  }
}

// Mutations of valid constraints.
TEST_F(HostileGrammarsTest, Mutations) {
  const std::string seeds[] = {
      "root ::= item (\",\" item)* \"x\"{2,5}\nitem ::= [a-z]+ | \"(\" root \")\" | \"\\u00e9\" # c\n",
      "(?:[a-f\\d]{2,4}|x+?)(y|\\.z)*[^q-s]",
      R"({"type":"object","properties":{"a":{"type":"string","pattern":"[a-z]+"},"b":{"enum":[1,"x"]},)"
      R"("c":{"type":"array","items":{"$ref":"#"},"maxItems":2}},"required":["a"],"additionalProperties":false})",
  };
  const GrammarSpec::Kind kinds[] = {GrammarSpec::Kind::kGrammar, GrammarSpec::Kind::kRegex,
                                     GrammarSpec::Kind::kJsonSchema};
  const std::string alphabet = "(){}[]|*+?\\\"^$.:,=0129ab#/-\n \xc3\xff";
  const char* stress = std::getenv("SLUICE_STRESS");
  const int rounds = stress != nullptr && std::string(stress) == "full" ? 20000 : 300;
  for (int round = 0; round < rounds; ++round) {
    const int which = round % 3;
    std::string text = seeds[which];
    for (uint32_t edits = 1 + random_() % 3; edits > 0; --edits) {
      const size_t at = random_() % text.size();
      switch (random_() % 3) {
        case 0:
          text[at] = alphabet[random_() % alphabet.size()];
          break;
        case 1:
          text.insert(at, 1, alphabet[random_() % alphabet.size()]);
          break;
        default:
          text.erase(at, 1 + random_() % 4);
      }
    }
    SCOPED_TRACE(text);
    Try(Guided(kinds[which], text));
  }
}

// An ambiguous grammar makes each token more expensive than the last; it fails by its limit, and others
// continue.
TEST(HostileGrammarsLimitTest, AnAnswerWhoseMasksBecomeTooDearEndsAlone) {
  GrammarLanguage language(kTokenizers[1]);
  GrammarLimits limits;
  limits.mask_cpu_time = absl::Milliseconds(20);
  GrammarManager grammars(language.vocabulary(), limits);
  const int32_t a = language.Spell("a")[0];
  auto dear = grammars.Start(Gbnf("root ::= root root root | \"a\" | \"\""), {language.end()});
  ASSERT_TRUE(dear.ok()) << dear.status();
  auto cheap = grammars.Start(Regex("a+"), {language.end()});
  ASSERT_TRUE(cheap.ok()) << cheap.status();
  for (const auto& constraint : {&*dear, &*cheap}) {
    while ((*constraint)->state() == GrammarConstraint::State::kPreparing) {
      std::this_thread::yield();
    }
  }
  absl::Status end;
  for (int step = 0; step < 20000 && end.ok(); ++step) {
    end = (*dear)->Wait().status();
    ASSERT_TRUE((*cheap)->Wait().ok());
    if (end.ok()) {
      (*dear)->Accept(a);
      (*cheap)->Accept(a);
    }
  }
  EXPECT_TRUE(absl::IsResourceExhausted(end)) << end;
}

}  // namespace
}  // namespace sluice::inferd
