#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "google/protobuf/descriptor.h"
#include "tests/proto/proto_rules.h"

namespace sluice {
namespace {

namespace pb = google::protobuf;

bool IsLowerSnake(const std::string& name) {
  return !name.empty() && absl::ascii_islower(name[0]) && name.back() != '_' &&
         !absl::StrContains(name, "__") && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_';
         });
}

bool IsUpperSnake(const std::string& name) {
  return IsLowerSnake(absl::AsciiStrToLower(name)) && absl::AsciiStrToUpper(name) == name;
}

bool IsPascal(const std::string& name) {
  return !name.empty() && absl::ascii_isupper(name[0]) &&
         std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isalnum(c); });
}

// "FinishReason" -> "FINISH_REASON".
std::string UpperSnakeOf(const std::string& pascal) {
  std::string result;
  for (size_t i = 0; i < pascal.size(); ++i) {
    if (i > 0 && absl::ascii_isupper(pascal[i]) && !absl::ascii_isupper(pascal[i - 1])) {
      result += '_';
    }
    result += absl::ascii_toupper(pascal[i]);
  }
  return result;
}

bool HasVersionSuffix(const std::string& package) {
  const size_t dot = package.rfind(".v");
  return dot != std::string::npos && dot + 2 < package.size() && package[dot + 2] != '0' &&
         std::all_of(package.begin() + static_cast<long>(dot) + 2, package.end(),
                     [](char c) { return absl::ascii_isdigit(c); });
}

class Linter {
 public:
  void File(const pb::FileDescriptor& file);
  std::vector<std::string> Take() { return std::move(breaches_); }

 private:
  void Check(bool ok, const char* rule, const std::string& element) {
    if (!ok) {
      breaches_.push_back(absl::StrCat(rule, ": ", element));
    }
  }
  template <typename D>
  void Comment(const D& descriptor, const char* rule) {
    pb::SourceLocation location;
    const bool found = descriptor.GetSourceLocation(&location);
    Check(found && !absl::StripAsciiWhitespace(location.leading_comments).empty(), rule,
          std::string(descriptor.full_name()));
  }
  void Message(const pb::Descriptor& message);
  void Enum(const pb::EnumDescriptor& type);
  void Service(const pb::ServiceDescriptor& service);
  void Imports(const pb::FileDescriptor& file);
  void Uses(const pb::FileDescriptor* file) { used_.insert(file); }

  std::vector<std::string> breaches_;
  std::set<const pb::FileDescriptor*> used_;
  std::set<const pb::Descriptor*> rpc_types_;
};

void Linter::File(const pb::FileDescriptor& file) {
  const std::string& path = file.name();
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "" : path.substr(0, slash);
  const std::string base = path.substr(slash + 1);
  Check(file.syntax() == pb::FileDescriptor::SYNTAX_PROTO3, "SYNTAX_SPECIFIED", path);
  Check(!file.package().empty(), "PACKAGE_DEFINED", path);
  Check(IsLowerSnake(base.substr(0, base.rfind('.'))), "FILE_LOWER_SNAKE_CASE", path);
  Check(HasVersionSuffix(file.package()), "PACKAGE_VERSION_SUFFIX", path);
  Check(absl::StrReplaceAll(file.package(), {{".", "/"}}) == directory, "PACKAGE_DIRECTORY_MATCH", path);
  used_.clear();
  for (int i = 0; i < file.message_type_count(); ++i) {
    Message(*file.message_type(i));
  }
  for (int i = 0; i < file.enum_type_count(); ++i) {
    Enum(*file.enum_type(i));
  }
  for (int i = 0; i < file.service_count(); ++i) {
    Service(*file.service(i));
  }
  Imports(file);
}

void Linter::Imports(const pb::FileDescriptor& file) {
  Check(file.public_dependency_count() == 0, "IMPORT_NO_PUBLIC", file.name());
  Check(file.weak_dependency_count() == 0, "IMPORT_NO_WEAK", file.name());
  for (int i = 0; i < file.dependency_count(); ++i) {
    Check(used_.count(file.dependency(i)) > 0, "IMPORT_USED",
          absl::StrCat(file.name(), " imports ", file.dependency(i)->name()));
  }
}

void Linter::Message(const pb::Descriptor& message) {
  if (message.options().map_entry()) {
    for (int i = 0; i < message.field_count(); ++i) {
      if (message.field(i)->message_type() != nullptr) {
        Uses(message.field(i)->message_type()->file());
      }
    }
    return;
  }
  Check(IsPascal(message.name()), "MESSAGE_PASCAL_CASE", message.full_name());
  Comment(message, "COMMENT_MESSAGE");
  for (int i = 0; i < message.field_count(); ++i) {
    const pb::FieldDescriptor& field = *message.field(i);
    Check(IsLowerSnake(field.name()), "FIELD_LOWER_SNAKE_CASE", field.full_name());
    Check(!field.is_required(), "FIELD_NOT_REQUIRED", field.full_name());
    Comment(field, "COMMENT_FIELD");
    if (field.message_type() != nullptr) {
      Uses(field.message_type()->file());
    }
    if (field.enum_type() != nullptr) {
      Uses(field.enum_type()->file());
    }
  }
  for (int i = 0; i < message.real_oneof_decl_count(); ++i) {
    Check(IsLowerSnake(message.oneof_decl(i)->name()), "ONEOF_LOWER_SNAKE_CASE",
          message.oneof_decl(i)->full_name());
    Comment(*message.oneof_decl(i), "COMMENT_ONEOF");
  }
  for (int i = 0; i < message.nested_type_count(); ++i) {
    Message(*message.nested_type(i));
  }
  for (int i = 0; i < message.enum_type_count(); ++i) {
    Enum(*message.enum_type(i));
  }
}

void Linter::Enum(const pb::EnumDescriptor& type) {
  Check(IsPascal(type.name()), "ENUM_PASCAL_CASE", type.full_name());
  Check(!type.options().allow_alias(), "ENUM_NO_ALLOW_ALIAS", type.full_name());
  Check(type.value(0)->number() == 0, "ENUM_FIRST_VALUE_ZERO", type.full_name());
  Comment(type, "COMMENT_ENUM");
  const std::string prefix = absl::StrCat(UpperSnakeOf(type.name()), "_");
  for (int i = 0; i < type.value_count(); ++i) {
    const pb::EnumValueDescriptor& value = *type.value(i);
    Check(IsUpperSnake(value.name()), "ENUM_VALUE_UPPER_SNAKE_CASE", value.full_name());
    Check(absl::StartsWith(value.name(), prefix), "ENUM_VALUE_PREFIX", value.full_name());
    Check(value.number() != 0 || absl::EndsWith(value.name(), "_UNSPECIFIED"), "ENUM_ZERO_VALUE_SUFFIX",
          value.full_name());
    Comment(value, "COMMENT_ENUM_VALUE");
  }
}

void Linter::Service(const pb::ServiceDescriptor& service) {
  Check(IsPascal(service.name()), "SERVICE_PASCAL_CASE", service.full_name());
  Check(absl::EndsWith(service.name(), "Service"), "SERVICE_SUFFIX", service.full_name());
  Comment(service, "COMMENT_SERVICE");
  for (int i = 0; i < service.method_count(); ++i) {
    const pb::MethodDescriptor& rpc = *service.method(i);
    Check(IsPascal(rpc.name()), "RPC_PASCAL_CASE", rpc.full_name());
    Comment(rpc, "COMMENT_RPC");
    const std::string& input = rpc.input_type()->name();
    const std::string& output = rpc.output_type()->name();
    Check(input == rpc.name() + "Request" || input == service.name() + rpc.name() + "Request",
          "RPC_REQUEST_STANDARD_NAME", rpc.full_name());
    Check(output == rpc.name() + "Response" || output == service.name() + rpc.name() + "Response",
          "RPC_RESPONSE_STANDARD_NAME", rpc.full_name());
    for (const pb::Descriptor* type : {rpc.input_type(), rpc.output_type()}) {
      Check(rpc_types_.insert(type).second, "RPC_REQUEST_RESPONSE_UNIQUE", rpc.full_name());
      Uses(type->file());
    }
  }
}

}  // namespace

std::vector<std::string> LintBreaches(const pb::FileDescriptorSet& files, const std::string& prefix) {
  pb::DescriptorPool pool;
  Linter linter;
  for (const pb::FileDescriptorProto& proto : files.file()) {
    const pb::FileDescriptor* file = pool.BuildFile(proto);
    if (file == nullptr) {
      return {absl::StrCat("COMPILE: ", proto.name())};
    }
    if (absl::StartsWith(proto.name(), prefix)) {
      linter.File(*file);
    }
  }
  return linter.Take();
}

}  // namespace sluice
