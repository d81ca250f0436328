// Compares masks with independent implementations: PCRE2's partial matching for regexes, valid and invalid
// documents for schemas.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <random>
#include <string>
#include <vector>

#include "common/base/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/inferd/grammar/grammar_testing.h"

namespace sluice::inferd {
namespace {

using testing::HasSubstr;

// Reference for full and partial matches.
class Oracle {
 public:
  explicit Oracle(const std::string& regex) {
    const std::string whole = "\\A(?:" + regex + ")\\z";
    int error = 0;
    PCRE2_SIZE at = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(),
                          PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &error, &at, nullptr);
    EXPECT_NE(code_, nullptr) << regex << " at " << at;
    data_ = pcre2_match_data_create(1, nullptr);
  }
  ~Oracle() {
    pcre2_match_data_free(data_);
    pcre2_code_free(code_);
  }

  bool Matches(const std::string& text) const { return Match(text, 0) >= 0; }
  bool CanGoOn(const std::string& text) const {
    return Match(text, PCRE2_PARTIAL_HARD) == PCRE2_ERROR_PARTIAL;
  }

 private:
  int Match(const std::string& text, uint32_t options) const {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, options, data_,
                       nullptr);
  }
  pcre2_code* code_;
  pcre2_match_data* data_;
};

constexpr const char* kRegexes[] = {
    "[a-z]{3,5}",
    "(yes|no|maybe)",
    "\\d{4}-\\d{2}-\\d{2}",
    "-?(0|[1-9][0-9]*)(\\.[0-9]+)?",
    "(a|ab)(c|bcd)*",
    "[^\\n\"]*\\.",
    ".{2,6}",
    "(?:[A-Z][a-z]+ )+[A-Z]\\.",
    "\\w+@\\w+\\.(com|org)",
    "(\\+|-)?\\s*[0-9a-f]{2,}",
    "[é-ü]+x?",
    "(foo\\|bar|\\{\\}){1,3}",
    "(b(a)+)?",
    "([ab]){1,2}|((b|[ab])|(b)*)",
    "[\\^-c]+\\]|[\\]\\-x-]{2}",
};

TEST(GrammarMasksTest, AllowOnlyTokensThatKeepTheRegexMatchable) {
  std::mt19937 random(7);
  for (const char* folder : kTokenizers) {
    GrammarLanguage language(folder);
    for (const char* regex : kRegexes) {
      const Oracle oracle(regex);
      for (int walk = 0; walk < 3; ++walk) {
        auto matcher = language.Begin(Regex(regex));
        ASSERT_TRUE(matcher.ok()) << regex << ": " << matcher.status();
        std::string text;
        for (int step = 0; step < 8; ++step) {
          const std::vector<uint32_t> mask = MaskOf(matcher->get());
          std::vector<int32_t> next;
          for (size_t id = 0; id < language.vocabulary().tokens.size(); ++id) {
            const std::string& token = language.vocabulary().tokens[id];
            const bool allowed = Allows(mask, static_cast<int32_t>(id));
            if (static_cast<int32_t>(id) == language.end()) {
              ASSERT_EQ(allowed, oracle.Matches(text)) << regex << ": end of \"" << text << "\"";
            } else if (token.empty()) {
              ASSERT_FALSE(allowed) << regex << ": token " << id << " has no text";
            } else if (IsWellFormedUtf8(token) && token.find('\0') == std::string::npos) {
              ASSERT_EQ(allowed, oracle.Matches(text + token) || oracle.CanGoOn(text + token))
                  << regex << ": \"" << token << "\" behind \"" << text << "\"";
              if (allowed) {
                next.push_back(static_cast<int32_t>(id));
              }
            }
          }
          ASSERT_EQ((*matcher)->complete(), oracle.Matches(text));
          if (next.empty()) {
            break;  // at the end, or before a character that this vocabulary encodes as bytes
          }
          const int32_t token = next[random() % next.size()];
          ASSERT_TRUE((*matcher)->Accept(token).ok());
          text += language.vocabulary().tokens[token];
        }
      }
    }
  }
}

// True if the grammar accepts `text` token by token and may end there.
bool Takes(GrammarLanguage* language, const GrammarSpec& spec, const std::string& text) {
  auto matcher = language->Begin(spec);
  EXPECT_TRUE(matcher.ok()) << spec.text << ": " << matcher.status();
  if (!matcher.ok()) {
    return false;
  }
  for (const int32_t id : language->Spell(text)) {
    if (!Allows(MaskOf(matcher->get()), id)) {
      EXPECT_FALSE((*matcher)->Accept(id).ok()) << spec.text << ": " << text;
      return false;
    }
    EXPECT_TRUE((*matcher)->Accept(id).ok()) << spec.text << ": " << text;
  }
  const bool ends = Allows(MaskOf(matcher->get()), language->end());
  EXPECT_EQ(ends, (*matcher)->complete());
  return ends;
}

struct SchemaCase {
  const char* schema;
  std::vector<std::string> valid;
  std::vector<std::string> invalid;
};

TEST(GrammarMasksTest, TakeTheDocumentsThatASchemaAllows) {
  const std::vector<SchemaCase> cases = {
      {R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0,
           "maximum": 150}}, "required": ["name"]})",
       {R"({"name": "A"})", R"({"name": "é \"q\" \u00e9 \n", "age": 150})", R"({"name": "x", "age": 0})"},
       {R"({})", R"({"age": 3})", R"({"name": "A", "age": 151})", R"({"name": "A", "age": -1})",
        R"({"name": 3})", R"({"name": "A", "other": 1})", R"({"name": "a)", R"({"name": "A"} )",
        R"({"name":  "A"})"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 4})",
       {R"("ab")", R"("éüöä")"},
       {R"("a")", R"("abcde")", "\"a\tb\"", "\"a\nb\"", "\"a\x01b\""}},
      {R"({"type": "string", "pattern": "^a.c$"})",
       {R"("abc")", R"("aéc")"},
       {R"("a"c")", "\"a\nc\"", "\"a\tc\"", R"("a\nc")", R"("abcd")"}},
      {R"({"type": "string", "pattern": "[^x]\"\\\\{1,2}[\\S ]?\\t?"})",
       {R"("y\"\\")", R"("é\"\\\\z\u0009")"},
       {R"("x\"\\")", R"("y"\\")", R"("y\"\")", "\"y\\\"\\\\\t\""}},
      {R"({"type": "array", "items": {"enum": [1, "two", null]}, "minItems": 1, "maxItems": 3})",
       {R"([1])", R"([1, "two", null])"},
       {R"([])", R"([2])", R"([1, 1, 1, 1])", R"(["two)", R"([1,])"}},
      {R"({"type": "number", "exclusiveMinimum": 0, "maximum": 1})",
       {"1", "0.5", "0.125"},
       {"0", "1.5", "-0.5", "2", "01"}},
      {R"({"$defs": {"node": {"type": "object", "properties": {"v": {"type": "boolean"}, "next": {"$ref":
           "#/$defs/node"}}, "required": ["v"]}}, "$ref": "#/$defs/node"})",
       {R"({"v": true})", R"({"v": true, "next": {"v": false, "next": {"v": true}}})"},
       {R"({"v": true, "next": {}})", R"({"next": {"v": true}})"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}})",
       {R"({})", R"({"a": 1, "b c": -20})"},
       {R"({"a": "1"})", R"({a: 1})"}},
      {R"({"type": "object", "patternProperties": {"^x_[0-9]$": {"type": "null"}}})",
       {R"({})", R"({"x_1": null, "x_2": null})"},
       {R"({"y": null})", R"({"x_1": 1})", R"({"x_11": null})"}},
      {R"({"type": "object", "propertyNames": {"maxLength": 2}, "additionalProperties": {"type": "integer"}})",
       {R"({"ab": 1})"},
       {R"({"abc": 1})", R"({"ab": "x"})", "{\"\t\": 1}"}},
      {R"({"type": "string", "format": "date"})", {R"("2024-02-29")"}, {R"("2024-13-01")", R"("24-01-01")"}},
      {R"({"type": "string", "format": "ipv4"})",
       {R"("127.0.0.1")", R"("255.255.255.255")"},
       {R"("256.0.0.1")", R"("1.2.3")"}},
      {R"({"oneOf": [{"type": "integer"}, {"type": "string"}]})", {"3", R"("3")"}, {"null", "3.5"}},
      {R"({"type": ["integer", "null"], "multipleOf": 5})", {"null", "15", "-5"}, {"3", "5.5"}},
      {R"({"const": {"a": [1, 0.1]}})", {}, {R"({"a": [1]})"}},
  };
  for (const char* folder : kTokenizers) {
    GrammarLanguage language(folder);
    for (const SchemaCase& c : cases) {
      for (const std::string& text : c.valid) {
        EXPECT_TRUE(Takes(&language, Schema(c.schema), text)) << c.schema << ": " << text;
      }
      for (const std::string& text : c.invalid) {
        EXPECT_FALSE(Takes(&language, Schema(c.schema), text)) << c.schema << ": " << text;
      }
    }
  }
}

TEST(GrammarMasksTest, AnObjectIsAnyObjectAndNothingElse) {
  GrammarLanguage language(kTokenizers[0]);
  const GrammarSpec object = Guided(GrammarSpec::Kind::kJsonObject, "");
  EXPECT_TRUE(Takes(&language, object, "{}"));
  EXPECT_TRUE(Takes(&language, object, R"({"a": [1, {"b": null}], "c": "\u0000"})"));
  EXPECT_FALSE(Takes(&language, object, "[]"));
  EXPECT_FALSE(Takes(&language, object, "3"));
  EXPECT_FALSE(Takes(&language, object, "{\"a\": \"\t\"}"));
}

TEST(GrammarMasksTest, AChoiceIsOneOfItsTexts) {
  GrammarLanguage language(kTokenizers[1]);
  const GrammarSpec choice = {GrammarSpec::Kind::kChoice, "", {"ja", "jawohl", "say \"no\"\\\n", "ü"}};
  for (const std::string& text : choice.choices) {
    EXPECT_TRUE(Takes(&language, choice, text)) << text;
  }
  for (const char* text : {"j", "jaw", "say", "ja ja"}) {
    EXPECT_FALSE(Takes(&language, choice, text)) << text;
  }
}

TEST(GrammarMasksTest, AGrammarMayBeRecursive) {
  GrammarLanguage language(kTokenizers[0]);
  const GrammarSpec sums = Gbnf("root ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" root \")\"  # nests\n");
  for (const char* text : {"1", "1+22", "((3)+4)", "(((((5)))))"}) {
    EXPECT_TRUE(Takes(&language, sums, text)) << text;
  }
  for (const char* text : {"", "+", "(1", "1)", "1+"}) {
    EXPECT_FALSE(Takes(&language, sums, text)) << text;
  }
  EXPECT_TRUE(Takes(&language, Gbnf("root ::= root \"a\" | \"a\""), "aaaa"));  // left recursion
}

TEST(GrammarMasksTest, OtherTokensMayEndAnAnswer) {
  GrammarLanguage language(kTokenizers[0]);
  const absl::StatusOr<GrammarSource> source = SourceOf(Regex("ab?"));
  ASSERT_TRUE(source.ok());
  GrammarCompiler compiler(&language.vocabulary());
  const auto constraint = compiler.Compile(*source);
  ASSERT_TRUE(constraint.ok()) << constraint.status();
  const int32_t other = static_cast<int32_t>(language.vocabulary().size) - 1;  // a row without a token
  auto matcher = GrammarMatcher::Create(*constraint, {language.end(), other});
  ASSERT_TRUE(matcher.ok()) << matcher.status();
  EXPECT_FALSE(Allows(MaskOf(matcher->get()), other));
  ASSERT_TRUE((*matcher)->Accept(language.Spell("a")[0]).ok());
  EXPECT_TRUE(Allows(MaskOf(matcher->get()), other));
  EXPECT_TRUE(Allows(MaskOf(matcher->get()), language.end()));
  ASSERT_TRUE((*matcher)->Accept(language.Spell("b")[0]).ok());
  const std::vector<uint32_t> mask = MaskOf(matcher->get());
  int allowed = 0;
  for (size_t id = 0; id < language.vocabulary().size; ++id) {
    allowed += Allows(mask, static_cast<int32_t>(id)) ? 1 : 0;
  }
  EXPECT_EQ(allowed, 2);
}

TEST(GrammarMasksTest, RefuseWhatTheGrammarWouldLeaveOut) {
  GrammarLanguage language(kTokenizers[0]);
  struct Case {
    GrammarSpec spec;
    const char* what;
  };
  for (const Case& c : {
           Case{Schema(R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})"), "oneOf"},
           Case{Schema(R"({"type": "number", "multipleOf": 0.5})"), "multipleOf"},
           Case{Schema(R"({"type": "integer", "multipleOf": 7, "minimum": 3})"), "multipleOf"},
           Case{Schema(R"({"type": "integer", "minimum": 3, "maximum": 2})"), "minimum"},
           Case{Schema(R"({"type": "integer", "minimum": "3"})"), "number"},
           Case{Schema(R"({"type": "string", "pattern": "(?=a)b"})"), "look-around"},
           Case{Schema(R"({"type": "string", "pattern": "(a"})"), "#/pattern"},
           Case{Schema(R"({"type": "string", "pattern": "a$b"})"), "$"},
           Case{Schema(R"({"type": "object", "patternProperties": {"(a": {}}})"), "#/patternProperties"},
           Case{Regex("a\\b"), "\\b"},
           Case{Regex("(a)\\1"), "\\1"},
           Case{Regex("a**"), "repetition"},
           Case{Regex("[a"), "["},
           Case{Regex("(?<=a)b"), "look-around"},
           Case{Gbnf("start ::= \"a\""), "root"},
           Case{Gbnf("root ::= other"), "other"},
           Case{Gbnf("root ::= \"a"), ""},
           Case{Gbnf("root[temperature=0.5] ::= \"a\""), "options"},
       }) {
    const absl::Status status = language.Begin(c.spec).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.spec.text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.what)) << c.spec.text;
  }
}

}  // namespace
}  // namespace sluice::inferd
