// Results of a benchmark for lab/docs/performance.md: the `--json FILE` of every program that has it, read by
// bench/report.py.
//
// Thread safety: thread-compatible; filled by the main thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace sluice::bench {

class Results {
 public:
  // Removes `--json FILE` from the arguments before the program parses the rest.
  Results(const char* program, int* argc, char** argv) : program_(program) {
    int kept = 1;
    for (int i = 1; i < *argc; ++i) {
      if (std::strcmp(argv[i], "--json") == 0 && i + 1 < *argc) {
        file_ = argv[++i];
      } else {
        argv[kept++] = argv[i];
      }
    }
    *argc = kept;
  }

  // Names the table for the figures if they are not this machine's.
  void Of(std::string table) { table_ = std::move(table); }

  // Adds a figure. `what` names it within the program; a repeated name replaces the earlier figure.
  void Add(const std::string& what, double value, const std::string& unit) {
    rows_.push_back(
        absl::StrFormat("{\"what\":%s,\"value\":%.6g,\"unit\":%s}", Quoted(what), value, Quoted(unit)));
  }

  // Writes the file if one was requested. False, with a line on stderr, on failure.
  bool Write(uint32_t threads) const {
    if (file_.empty()) {
      return true;
    }
    std::ofstream out(file_, std::ios::trunc);
    out << "{\"program\":" << Quoted(program_);
    if (!table_.empty()) {
      out << ",\"table\":" << Quoted(table_);
    }
    out << ",\"threads\":" << threads << ",\"rows\":[";
    for (size_t i = 0; i < rows_.size(); ++i) {
      out << (i == 0 ? "" : ",") << rows_[i];
    }
    out << "]}\n";
    out.close();
    if (!out.good()) {
      std::fprintf(stderr, "%s: cannot write %s\n", program_.c_str(), file_.c_str());
    }
    return out.good();
  }

 private:
  static std::string Quoted(const std::string& text) {
    return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
  }

  std::string program_;
  std::string table_;
  std::string file_;
  std::vector<std::string> rows_;
};

}  // namespace sluice::bench
