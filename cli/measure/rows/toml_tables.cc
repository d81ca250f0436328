#include "cli/measure/rows/toml_tables.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice::cli {

absl::StatusOr<toml::table> ParseToml(const std::string& text, const std::string& subject) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(subject, ": line ", error.source().begin.line, ": ", std::string(error.description())));
  }
}

absl::Status Wrong(const std::string& subject, const toml::node& node, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(subject, ": line ", node.source().begin.line, ": ", what));
}

absl::StatusOr<std::vector<const toml::table*>> Tables(const toml::table& root, const std::string& subject,
                                                       const char* key, bool required) {
  std::vector<const toml::table*> tables;
  const toml::node* node = root.get(key);
  if (node == nullptr && !required) {
    return tables;
  }
  const toml::array* list = node == nullptr ? nullptr : node->as_array();
  if (list == nullptr || list->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(subject, ": there is no [[", key, "]]"));
  }
  for (const toml::node& element : *list) {
    if (element.as_table() == nullptr) {
      return Wrong(subject, element, absl::StrCat(key, " must be a table"));
    }
    tables.push_back(element.as_table());
  }
  return tables;
}

absl::StatusOr<std::vector<QualityPack>> ReadPackTables(const toml::table& root, const std::string& subject) {
  std::vector<QualityPack> packs;
  std::set<std::string> names;
  ASSIGN_OR_RETURN(const auto tables, Tables(root, subject, "pack"));
  for (const toml::table* table : tables) {
    QualityPack& pack = packs.emplace_back();
    TableReader reader(subject, *table);
    reader.Text("name", true, &pack.name);
    reader.Texts("args", &pack.args);
    reader.Flag("calibrate", &pack.calibrate);
    reader.Text("profile_of", false, &pack.profile_of);
    reader.Flag("synth", &pack.synth);
    RETURN_IF_ERROR(reader.Finish());
    if (!pack.profile_of.empty() && names.count(pack.profile_of) == 0) {
      return Wrong(subject, *table, absl::StrCat("there is no pack \"", pack.profile_of, "\" before it"));
    }
    if (!names.insert(pack.name).second || pack.name.find('/') != std::string::npos) {
      return Wrong(subject, *table, absl::StrCat("pack \"", pack.name, "\" is there twice, or has a slash"));
    }
  }
  return packs;
}

void TableReader::Text(const char* key, bool required, std::string* out) {
  const toml::node* node = Find(key, required);
  if (node != nullptr && Check(node->is_string(), *node, key, "must be a string")) {
    *out = *node->value<std::string>();
  }
}

void TableReader::Texts(const char* key, std::vector<std::string>* out) {
  const toml::node* node = Find(key, false);
  if (node == nullptr) {
    return;
  }
  const toml::array* list = node->as_array();
  const auto is_text = [](const toml::node& element) { return element.is_string(); };
  if (Check(list != nullptr && std::all_of(list->begin(), list->end(), is_text), *node, key,
            "must be a list of strings")) {
    for (const toml::node& element : *list) {
      out->push_back(*element.value<std::string>());
    }
  }
}

void TableReader::Flag(const char* key, bool* out) {
  const toml::node* node = Find(key, false);
  if (node != nullptr && Check(node->is_boolean(), *node, key, "must be true or false")) {
    *out = *node->value<bool>();
  }
}

void TableReader::Real(const char* key, std::optional<double>* out) {
  const toml::node* node = Find(key, false);
  if (node != nullptr && Check(node->is_number(), *node, key, "must be a number")) {
    *out = *node->value<double>();
  }
}

absl::Status TableReader::Finish() {
  for (const auto& [key, node] : table_) {
    if (seen_.count(std::string(key.str())) == 0) {
      Fail(node, std::string(key.str()).c_str(), "is not known");
    }
  }
  return status_;
}

const toml::node* TableReader::Find(const char* key, bool required) {
  seen_.insert(key);
  const toml::node* node = table_.get(key);
  if (node == nullptr && required) {
    Fail(table_, key, "is missing");
  }
  return node;
}

void TableReader::Fail(const toml::node& node, const char* key, const char* what) {
  status_.Update(Wrong(subject_, node, absl::StrCat(key, " ", what)));
}

bool TableReader::Check(bool right, const toml::node& node, const char* key, const char* what) {
  if (!right) {
    Fail(node, key, what);
  }
  return right;
}

}  // namespace sluice::cli
