// Quantization alone, and `sluice pack` over the same tensors: the overhead of reading, checking, transposing
// and writing. Target: pack takes at most quantize / 0.6.
//
// usage: quantize_bench [--threads N] [--model DIR] [--work DIR] [--rounds N] [WORDS...]
//   WORDS: encodings as for `sluice pack --bits`, optionally with /GROUP and /GROUP/META; default:
//   q8 q4 q4/64/8 q3 q2 q2/16. Dense matrices are stored the same way.
//   Without --model a checkpoint of 113 M normally distributed bf16 weights is made in --work (TMPDIR or
//   /tmp).
//
// Both sides process the same units in the same order on the same threads. `quantize` encodes float32 rows
// from memory into a buffer of one row; `pack` is PackModel from the source's files in the page cache to a
// synced pack on disk. Rounds alternate; medians are printed, in millions of weights per second and thread.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/results.h"
#include "common/base/status.h"
#include "pack/row_codec.h"
#include "pack/row_layout.h"
#include "pack/writer/matrix_reader.h"
#include "pack/writer/pack_job.h"
#include "pack/writer/pack_writer.h"
#include "pack/writer/parallel_units.h"
#include "tests/support/tiny_model.h"

namespace sluice {
namespace {

struct Arguments {
  bench::Results* results = nullptr;  // not owned
  uint32_t threads = 0;
  std::string model;
  std::string work = std::getenv("TMPDIR") != nullptr ? std::getenv("TMPDIR") : "/tmp";
  int rounds = 3;
  std::vector<std::string> words;
};

// A matrix in memory and the encoding of its rows.
struct Matrix {
  uint32_t rows = 0;
  uint32_t cols = 0;
  std::vector<float> values;  // [rows][cols]
  EncodingDescriptor encoding;
};

// The matrices of each unit of a job.
using Units = std::vector<std::vector<Matrix>>;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::StatusOr<Matrix> LoadMatrix(const PackJob& job, const SourceMatrix& source,
                                  const EncodingDescriptor& encoding) {
  Matrix matrix{source.rows(), source.cols(), {}, encoding};
  matrix.values.resize(static_cast<size_t>(matrix.rows) * matrix.cols);
  RETURN_IF_ERROR(MakeRowReader(*job.checkpoint, source)->Next(matrix.rows, absl::MakeSpan(matrix.values)));
  return matrix;
}

absl::StatusOr<Units> LoadUnits(const PackJob& job) {
  Units units(job.units());
  for (uint32_t unit = 0; unit < job.dense_extents; ++unit) {
    const auto [first, last] = job.dense_range(unit);
    for (size_t i = first; i < last; ++i) {
      ASSIGN_OR_RETURN(Matrix matrix, LoadMatrix(job, job.dense[i], job.manifest.dense_tensors[i].encoding));
      units[unit].push_back(std::move(matrix));
    }
  }
  for (size_t i = 0; i < job.expert_units.size(); ++i) {
    const ExpertUnit& expert = job.expert_units[i];
    const ExpertSource& source = job.experts[expert.layer][expert.expert];
    const auto& parts = job.manifest.expert_formats[expert.format].parts;
    const SourceMatrix* const matrices[] = {&source.up, &source.gate, &source.down};
    for (int p = 0; p < kPartCount; ++p) {
      ASSIGN_OR_RETURN(Matrix matrix, LoadMatrix(job, *matrices[p], parts[p]));
      units[job.dense_extents + i].push_back(std::move(matrix));
    }
  }
  return units;
}

absl::StatusOr<double> QuantizeSeconds(const Units& units, uint32_t workers) {
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(RunUnits(workers, static_cast<uint32_t>(units.size()), [&](uint32_t, uint32_t unit) {
    std::vector<std::byte> row;
    for (const Matrix& matrix : units[unit]) {
      row.resize(RowBytes(matrix.encoding, matrix.cols));
      for (uint32_t r = 0; r < matrix.rows; ++r) {
        const auto values =
            absl::MakeConstSpan(matrix.values).subspan(static_cast<size_t>(r) * matrix.cols, matrix.cols);
        if (EncodeRow(matrix.encoding, values, row.data()) >= 0) return absl::DataLossError("does not fit");
      }
    }
    return absl::OkStatus();
  }));
  return SecondsSince(start);
}

// Parses a word such as "q4/64/8".
absl::StatusOr<Recipe> RecipeOf(const std::string& word) {
  RecipeOptions words;
  words.bits = word.substr(0, word.find('/'));
  words.dense_bits = words.bits;
  int group = 64;
  int meta_bits = 16;
  if (std::sscanf(word.c_str(), "%*[^/]/%d/%d", &group, &meta_bits) >= 1) words.group = group;
  words.meta_bits = meta_bits;
  return RecipeFromOptions(words);
}

absl::Status Measure(const Arguments& arguments, const std::string& word) {
  PackOptions options;
  ASSIGN_OR_RETURN(options.recipe, RecipeOf(word));
  options.threads = arguments.threads;
  options.force = true;
  ASSIGN_OR_RETURN(const PackJob job, PreparePack(arguments.model, options));
  ASSIGN_OR_RETURN(const Units units, LoadUnits(job));
  double weights = 0;
  for (const std::vector<Matrix>& unit : units) {
    for (const Matrix& matrix : unit) weights += static_cast<double>(matrix.values.size());
  }
  const uint32_t workers = WorkerCount(arguments.threads, job.units());
  const std::string out = absl::StrCat(arguments.work, "/quantize_bench.pack");
  std::vector<double> quantize;
  std::vector<double> pack;
  std::vector<double> ratio;
  for (int round = 0; round < arguments.rounds; ++round) {
    ASSIGN_OR_RETURN(const double seconds, QuantizeSeconds(units, workers));
    ASSIGN_OR_RETURN(const PackSummary summary, PackModel(arguments.model, out, options, nullptr, nullptr));
    quantize.push_back(seconds);
    pack.push_back(summary.seconds);
    ratio.push_back(seconds / summary.seconds);
  }
  std::filesystem::remove_all(out);
  const double rate = weights / 1e6 / workers;
  std::printf("%-10s quantize %7.3f s %7.1f Mweights/s/thread   pack %7.3f s %7.1f   quantize/pack %.2f%s\n",
              word.c_str(), Median(quantize), rate / Median(quantize), Median(pack), rate / Median(pack),
              Median(ratio), Median(ratio) >= 0.6 ? "" : "  (below 0.6)");
  arguments.results->Add(absl::StrCat(word, ", quantized"), rate / Median(quantize), "Mweights/s/thread");
  arguments.results->Add(absl::StrCat(word, ", quantized / packed"), Median(ratio), "");
  return absl::OkStatus();
}

absl::Status Run(Arguments arguments) {
  std::string made;
  if (arguments.model.empty()) {
    made = absl::StrCat(arguments.work, "/quantize_bench.model");
    const TinyModelSpec spec{
        .vocab = 512, .hidden = 2048, .layers = 2, .heads = 16, .kv_heads = 4, .experts = 16, .width = 512};
    RETURN_IF_ERROR(WriteTinyModel(spec, made));
    arguments.model = made;
  }
  if (arguments.words.empty()) arguments.words = {"q8", "q4", "q4/64/8", "q3", "q2", "q2/16"};
  std::printf("source %s, %u threads\n", arguments.model.c_str(), WorkerCount(arguments.threads, 1u << 20));
  absl::Status status;
  for (const std::string& word : arguments.words) {
    status = Measure(arguments, word);
    if (!status.ok()) break;
  }
  if (!made.empty()) std::filesystem::remove_all(made);
  return status;
}

bool Parse(int argc, char** argv, Arguments* arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (!name.starts_with("--")) {
      arguments->words.push_back(name);
      continue;
    }
    if (++i == argc) return false;
    if (name == "--threads") {
      if (!absl::SimpleAtoi(argv[i], &arguments->threads)) return false;
    } else if (name == "--rounds") {
      if (!absl::SimpleAtoi(argv[i], &arguments->rounds) || arguments->rounds < 1) return false;
    } else if (name == "--model") {
      arguments->model = argv[i];
    } else if (name == "--work") {
      arguments->work = argv[i];
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::bench::Results results("quantize_bench", &argc, argv);
  sluice::Arguments arguments;
  arguments.results = &results;
  if (!sluice::Parse(argc, argv, &arguments)) {
    std::fprintf(stderr,
                 "usage: quantize_bench [--threads N] [--model DIR] [--work DIR] [--rounds N] [--json FILE] "
                 "[WORDS...]\n");
    return 2;
  }
  const uint32_t threads = sluice::WorkerCount(arguments.threads, 1u << 20);
  const absl::Status status = sluice::Run(std::move(arguments));
  if (!status.ok()) std::fprintf(stderr, "quantize_bench: %s\n", std::string(status.message()).c_str());
  return status.ok() && results.Write(threads) ? 0 : 1;
}
