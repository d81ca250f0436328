#include "inferd/openai/fields/guide_fields.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/error_detail.h"
#include "common/status.h"

namespace sluice::inferd {
namespace {

constexpr char kCalls[] = "guided.calls[";

RequestedGrammar Asked(GrammarSpec::Kind kind, std::string text, std::string field) {
  RequestedGrammar asked;
  asked.spec.kind = kind;
  asked.spec.text = std::move(text);
  asked.field = std::move(field);
  return asked;
}

// Reads a schema, given as an object or as its text.
absl::StatusOr<RequestedGrammar> Schema(const JsonFields& fields, const char* name) {
  const Json& schema = *fields.Find(name);
  if (!schema.is_object() && !schema.is_string()) {
    return BadField(fields.Path(name), absl::StrCat("is ", KindOf(schema), ", must be a JSON schema"));
  }
  return Asked(GrammarSpec::Kind::kJsonSchema, schema.is_string() ? schema.get<std::string>() : Dump(schema),
               fields.Path(name));
}

absl::StatusOr<RequestedGrammar> Text(const JsonFields& fields, const char* name, GrammarSpec::Kind kind) {
  RequestedGrammar asked = Asked(kind, "", fields.Path(name));
  RETURN_IF_ERROR(fields.Take(name, &asked.spec.text));
  return asked;
}

absl::StatusOr<RequestedGrammar> Choice(const JsonFields& fields, const char* name) {
  RequestedGrammar asked = Asked(GrammarSpec::Kind::kChoice, "", fields.Path(name));
  RETURN_IF_ERROR(fields.TakeTexts(name, &asked.spec.choices));
  return asked;
}

// Reads {"type": "json_schema", "json_schema": {"name", "schema"}}; other APIs have the schema at "schema",
// and so does json_object in llama.cpp.
absl::StatusOr<std::optional<RequestedGrammar>> Format(const Json& format, const std::string& path) {
  const JsonFields fields(format, path + ".");
  std::string type;
  RETURN_IF_ERROR(fields.Take("type", &type));
  if (type == "text") {
    return std::nullopt;
  }
  if (type != "json_object" && type != "json_schema") {
    return BadField(fields.Path("type"), absl::StrCat("is \"", type.substr(0, 40),
                                                      "\", must be text, json_object or json_schema"));
  }
  if (fields.Has("schema")) {
    return Schema(fields, "schema");
  }
  if (type == "json_object") {
    return Asked(GrammarSpec::Kind::kJsonObject, "", path);
  }
  ASSIGN_OR_RETURN(const Json* named, fields.TakeObject("json_schema"));
  if (named == nullptr) {
    return BadField(fields.Path("json_schema"), "is missing");
  }
  const JsonFields own(*named, fields.Path("json_schema") + ".");
  if (!own.Has("schema")) {
    return BadField(own.Path("schema"), "is missing");
  }
  return Schema(own, "schema");
}

struct Name {
  const char* name;
  GrammarSpec::Kind kind;
};

absl::StatusOr<RequestedGrammar> Read(const JsonFields& fields, const Name& name) {
  switch (name.kind) {
    case GrammarSpec::Kind::kJsonSchema:
      return Schema(fields, name.name);
    case GrammarSpec::Kind::kChoice:
      return Choice(fields, name.name);
    default:
      return Text(fields, name.name, name.kind);
  }
}

// Adds the members of `names` that are present in `fields`.
absl::Status AddNamed(const JsonFields& fields, absl::Span<const Name> names,
                      std::vector<RequestedGrammar>* out) {
  for (const Name& name : names) {
    if (fields.Has(name.name)) {
      ASSIGN_OR_RETURN(RequestedGrammar asked, Read(fields, name));
      out->push_back(std::move(asked));
    }
  }
  return absl::OkStatus();
}

absl::Status AddStructured(const JsonFields& body, std::vector<RequestedGrammar>* out) {
  constexpr char kStructured[] = "structured_outputs";
  ASSIGN_OR_RETURN(const Json* structured, body.TakeObject(kStructured));
  if (structured == nullptr) {
    return absl::OkStatus();
  }
  const JsonFields fields(*structured, absl::StrCat(kStructured, "."));
  const size_t before = out->size();
  RETURN_IF_ERROR(AddNamed(fields,
                           {{"json", GrammarSpec::Kind::kJsonSchema},
                            {"regex", GrammarSpec::Kind::kRegex},
                            {"grammar", GrammarSpec::Kind::kGrammar},
                            {"choice", GrammarSpec::Kind::kChoice}},
                           out));
  bool object = false;
  RETURN_IF_ERROR(fields.Take("json_object", &object));
  if (object) {
    out->push_back(Asked(GrammarSpec::Kind::kJsonObject, "", fields.Path("json_object")));
  }
  if (fields.Has("structural_tag")) {
    return BadField(fields.Path("structural_tag"), "is not served");
  }
  return out->size() > before
             ? absl::OkStatus()
             : BadField(kStructured, "must have one of json, regex, grammar, choice and json_object");
}

// Returns the part of the message behind "<field>: ".
std::string DescriptionOf(const absl::Status& status, const std::string& field) {
  return std::string(absl::StripPrefix(status.message(), absl::StrCat(field, ": ")));
}

}  // namespace

absl::StatusOr<std::optional<RequestedGrammar>> ReadGrammar(const JsonFields& body) {
  std::vector<RequestedGrammar> all;
  for (const char* name : {"response_format", "text.format", "output_config.format", "output_format"}) {
    ASSIGN_OR_RETURN(const Json* format, body.TakeObject(name));
    if (format != nullptr) {
      ASSIGN_OR_RETURN(std::optional<RequestedGrammar> asked, Format(*format, body.Path(name)));
      if (asked.has_value()) {
        all.push_back(*std::move(asked));
      }
    }
  }
  RETURN_IF_ERROR(AddNamed(body,
                           {{"guided_json", GrammarSpec::Kind::kJsonSchema},
                            {"guided_regex", GrammarSpec::Kind::kRegex},
                            {"guided_grammar", GrammarSpec::Kind::kGrammar},
                            {"guided_choice", GrammarSpec::Kind::kChoice},
                            {"json_schema", GrammarSpec::Kind::kJsonSchema},
                            {"grammar", GrammarSpec::Kind::kGrammar}},
                           &all));
  RETURN_IF_ERROR(AddStructured(body, &all));
  if (all.size() > 1) {
    return BadField(all[1].field,
                    absl::StrCat("and ", all[0].field, " both say what the answer conforms to; one may"));
  }
  return all.empty() ? std::nullopt : std::optional(std::move(all[0]));
}

absl::Status ToClientFieldNames(const absl::Status& status, absl::Span<const std::string> fields) {
  const std::string field = FieldOf(status);
  const bool compiled = ReasonOf(status) == "INVALID_GUIDE";
  if (fields.empty() || (!compiled && !absl::StartsWith(field, "guided."))) {
    return status;
  }
  size_t index = 0;
  if (absl::StartsWith(field, kCalls)) {
    const std::string digits = field.substr(sizeof(kCalls) - 1);
    if (!absl::SimpleAtoi(digits.substr(0, digits.find(']')), &index) || index >= fields.size()) {
      index = 0;
    }
  }
  absl::Status renamed =
      FieldError(status.code(), fields[index], DescriptionOf(status, compiled ? "guided" : field));
  if (compiled) {
    renamed.SetPayload(kReasonPayload, absl::Cord("INVALID_GUIDE"));
  }
  return renamed;
}

}  // namespace sluice::inferd
