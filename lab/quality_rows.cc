#include "lab/quality_rows.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

absl::StatusOr<QualityPlan> ReadPlan(const toml::table& root, const std::string& subject) {
  QualityPlan plan;
  ASSIGN_OR_RETURN(plan.packs, ReadPackTables(root, subject));
  std::set<std::string> names;
  for (const QualityPack& pack : plan.packs) {
    names.insert(pack.name);
  }
  ASSIGN_OR_RETURN(const auto rows, Tables(root, subject, "row"));
  for (const toml::table* table : rows) {
    QualityRow& row = plan.rows.emplace_back();
    TableReader reader(subject, *table);
    reader.Text("name", true, &row.name);
    reader.Text("pack", true, &row.pack);
    reader.Texts("options", &row.options);
    reader.Text("series", false, &row.series);
    reader.Real("reference", &row.reference);
    RETURN_IF_ERROR(reader.Finish());
    if (names.count(row.pack) == 0) {
      return Wrong(subject, *table, absl::StrCat("there is no pack \"", row.pack, "\""));
    }
  }
  return plan;
}

}  // namespace

absl::StatusOr<QualityPlan> ParseQualityPlan(const std::string& text, const std::string& subject) {
  ASSIGN_OR_RETURN(const toml::table root, ParseToml(text, subject));
  return ReadPlan(root, subject);
}

QualityPlan PlanOf(const std::vector<QualityRecipe>& recipes, const std::vector<std::string>& presets) {
  QualityPlan plan;
  const bool sparse = presets.size() > 1 || presets.front() != "exact";
  const bool by_usage = std::any_of(recipes.begin(), recipes.end(),
                                    [](const QualityRecipe& recipe) { return recipe.by_usage; });
  plan.packs.push_back({"bf16", {"--recipe", "bf16"}, sparse || by_usage});
  plan.rows.push_back({"bf16, exact", "bf16", {}, "exact", {}});
  for (const QualityRecipe& recipe : recipes) {
    // The pack's name is also a folder's name.
    const std::string pack = absl::StrReplaceAll(recipe.word, {{"/", "_"}});
    if (pack != "bf16") {
      plan.packs.push_back({pack, {"--recipe", recipe.word}, sparse, recipe.by_usage ? "bf16" : ""});
    }
    for (const std::string& preset : presets) {
      if (pack != "bf16" || preset != "exact") {
        plan.rows.push_back(
            {absl::StrCat(recipe.word, ", ", preset), pack, {"--preset", preset}, preset, {}});
      }
    }
  }
  return plan;
}

absl::StatusOr<QualityResult> ParsePerplexityJson(const std::string& text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, "the output of `sluice perplexity --json`"));
  const auto number = [&json](const char* key) -> std::optional<double> {
    const auto found = json.is_object() ? json.find(key) : json.end();
    return found != json.end() && found->is_number() ? std::optional<double>(found->get<double>())
                                                     : std::nullopt;
  };
  QualityResult result;
  if (!number("ppl").has_value() || !number("tokens").has_value()) {
    return absl::InternalError("the output of `sluice perplexity --json` has no ppl and tokens");
  }
  result.ppl = *number("ppl");
  result.tokens = static_cast<uint64_t>(*number("tokens"));
  result.ppl_stderr = number("ppl_stderr").value_or(0);
  result.bytes_per_token = number("bytes_per_token").value_or(0);
  result.bits_per_weight = number("bits_per_weight").value_or(0);
  result.sparsity = number("sparsity");
  result.kld_mean = number("kld_mean");
  result.same_top = number("same_top");
  return result;
}

std::string QualityTable(const QualityPlan& plan, const std::vector<QualityResult>& results) {
  std::string table =
      "| series | run | bits/expert weight | MiB/token | neurons left out % | ppl | vs base % | reference | "
      "vs "
      "reference % | KL divergence | same top % |\n|---|---|---|---|---|---|---|---|---|---|---|\n";
  const auto percent = [](std::optional<double> share, double base) {
    return share.has_value() ? absl::StrFormat("%+.2f", 100 * (*share / base - 1)) : std::string("-");
  };
  for (size_t i = 0; i < results.size(); ++i) {
    const QualityRow& row = plan.rows[i];
    const QualityResult& r = results[i];
    absl::StrAppendFormat(&table, "| %s | %s | %.3f | %.3f | %s | %.4f | %s | %s | %s | %s | %s |\n",
                          row.series, row.name, r.bits_per_weight, r.bytes_per_token / (1 << 20),
                          r.sparsity.has_value() ? absl::StrFormat("%.2f", 100 * *r.sparsity) : "-", r.ppl,
                          percent(r.ppl, results[0].ppl),
                          row.reference.has_value() ? absl::StrFormat("%.4f", *row.reference) : "-",
                          row.reference.has_value() ? percent(r.ppl, *row.reference) : "-",
                          r.kld_mean.has_value() ? absl::StrFormat("%.5f", *r.kld_mean) : "-",
                          r.same_top.has_value() ? absl::StrFormat("%.2f", 100 * *r.same_top) : "-");
  }
  return table;
}

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
