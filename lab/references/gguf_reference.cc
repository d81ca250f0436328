// gguf_reference PACK OUT.gguf: writes a synthetic pack's model as GGUF for programs of the llama.cpp family
// (architecture llama), with the decoded values of the pack's rows: as Q4_0 for q4 rows, as Q8_0 for q8 rows,
// else as F32. So both sides of lab/peers.py route alike. The values have mean zero, as synth_weights.h draws
// them.
//
// Supports models with one kind of layer: grouped attention without biases and head norms, only routed
// experts, softmax over the chosen ones.
//
// Thread safety: a single-threaded program.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/base/file_io.h"
#include "common/base/half.h"
#include "common/base/status.h"
#include "common/model/dense_names.h"
#include "pack/pack.h"
#include "pack/row_codec.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

constexpr uint32_t kBlock = 32;  // values of a block of Q4_0 and Q8_0
constexpr uint64_t kAlignment = 32;

enum class Type : uint32_t { kF32 = 0, kQ40 = 2, kQ80 = 8 };

Type TypeFor(const EncodingDescriptor& encoding) {
  switch (encoding.encoding) {
    case Encoding::kQ4:
      return Type::kQ40;
    case Encoding::kQ8:
      return Type::kQ80;
    default:
      return Type::kF32;
  }
}

uint64_t BytesOf(Type type, uint64_t values) {
  switch (type) {
    case Type::kQ40:
      return values / kBlock * 18;
    case Type::kQ80:
      return values / kBlock * 34;
    case Type::kF32:
      break;
  }
  return values * 4;
}

void PutScale(float scale, std::string* out) {
  const uint16_t half = FloatToF16(scale);
  out->append(reinterpret_cast<const char*>(&half), sizeof half);
}

// Code c of Q4_0 represents (c - 8) * scale; the value of largest magnitude gets code 0.
void AppendQ40(const float* x, std::string* out) {
  float largest = 0;
  for (uint32_t i = 0; i < kBlock; ++i) {
    largest = std::abs(x[i]) > std::abs(largest) ? x[i] : largest;
  }
  const float scale = largest / -8;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  PutScale(scale, out);
  const auto code = [&](float value) {
    return static_cast<uint8_t>(std::min(15.0f, value * inverse + 8.5f));
  };
  for (uint32_t i = 0; i < kBlock / 2; ++i) {
    out->push_back(static_cast<char>(code(x[i]) | code(x[i + kBlock / 2]) << 4));
  }
}

void AppendQ80(const float* x, std::string* out) {
  float largest = 0;
  for (uint32_t i = 0; i < kBlock; ++i) {
    largest = std::max(largest, std::abs(x[i]));
  }
  const float scale = largest / 127;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  PutScale(scale, out);
  for (uint32_t i = 0; i < kBlock; ++i) {
    out->push_back(static_cast<char>(std::lround(x[i] * inverse)));
  }
}

void AppendRow(Type type, absl::Span<const float> row, std::string* out) {
  if (type == Type::kF32) {
    out->append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(float));
    return;
  }
  for (size_t i = 0; i < row.size(); i += kBlock) {
    type == Type::kQ40 ? AppendQ40(row.data() + i, out) : AppendQ80(row.data() + i, out);
  }
}

using Sink = std::function<void(const std::string&)>;

struct Tensor {
  std::string name;
  Type type = Type::kF32;
  std::vector<uint64_t> shape;  // GGUF's order: row length first
  std::function<absl::Status(const Sink&)> write;

  uint64_t bytes() const {
    uint64_t values = 1;
    for (const uint64_t n : shape) {
      values *= n;
    }
    return BytesOf(type, values);
  }
};

// Writes strings, numbers and arrays in GGUF's form, one after another.
class Header {
 public:
  void Number(uint64_t value, size_t size) { text_.append(reinterpret_cast<const char*>(&value), size); }
  void String(std::string_view value) {
    Number(value.size(), 8);
    text_.append(value);
  }
  void U32Key(std::string_view key, uint32_t value) {
    StartKey(key, 4);
    Number(value, 4);
  }
  void F32Key(std::string_view key, float value) {
    StartKey(key, 6);
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void StringKey(std::string_view key, std::string_view value) {
    StartKey(key, 8);
    String(value);
  }
  uint64_t keys() const { return keys_; }
  const std::string& text() const { return text_; }

 private:
  void StartKey(std::string_view key, uint32_t type) {
    ++keys_;
    String(key);
    Number(type, 4);
  }

  uint64_t keys_ = 0;
  std::string text_;
};

class Reference {
 public:
  static absl::StatusOr<std::unique_ptr<Reference>> Open(const std::string& dir) {
    auto reference = std::unique_ptr<Reference>(new Reference);
    ASSIGN_OR_RETURN(reference->pack_, Pack::Open(dir));
    if (reference->pack_->in_place()) {
      return absl::InvalidArgumentError(absl::StrCat(dir, " is in place: its model is a GGUF file already"));
    }
    RETURN_IF_ERROR(reference->CheckModel());
    ASSIGN_OR_RETURN(reference->dense_, File::OpenForRead(reference->pack_->file_path(PackFile::kDense)));
    ASSIGN_OR_RETURN(reference->experts_, File::OpenForRead(reference->pack_->file_path(PackFile::kExperts)));
    RETURN_IF_ERROR(reference->ListTensors());
    return reference;
  }

  absl::Status Write(const std::string& path) const {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    const auto put = [&file](const std::string& bytes) {
      file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    };
    std::string head = HeaderText();
    head.resize((head.size() + kAlignment - 1) / kAlignment * kAlignment);
    put(head);
    for (const Tensor& tensor : tensors_) {
      RETURN_IF_ERROR(tensor.write(put));
      put(std::string((kAlignment - tensor.bytes() % kAlignment) % kAlignment, '\0'));
    }
    return file.flush().good() ? absl::OkStatus()
                               : absl::UnavailableError(absl::StrCat("cannot write ", path));
  }

 private:
  Reference() = default;

  absl::Status CheckModel() const {
    const ModelConfig& config = pack_->config();
    for (const LayerConfig& layer : config.layers) {
      const AttentionConfig& a = layer.attention;
      const MoeConfig& m = layer.moe;
      if (layer != config.layers[0] || a.kind != AttentionKind::kGrouped || a.qkv_bias ||
          a.qk_norm != QkNorm::kNone || a.rope.kind != RopeKind::kDefault ||
          a.rope.dimensions != a.head_dim || m.experts == 0 || m.shared_width != 0 || !m.norm_topk_prob ||
          m.router != RouterKind::kSoftmaxTopK || m.activation != Activation::kSilu) {
        return absl::UnimplementedError(
            absl::StrCat(pack_->dir(), ": layers of other kinds than this program knows"));
      }
    }
    return absl::OkStatus();
  }

  std::string HeaderText() const {
    const ModelConfig& c = pack_->config();
    const AttentionConfig& a = c.layers[0].attention;
    const MoeConfig& m = c.layers[0].moe;
    Header h;
    h.StringKey("general.architecture", "llama");
    h.U32Key("llama.block_count", static_cast<uint32_t>(c.layers.size()));
    h.U32Key("llama.context_length", c.max_position);
    h.U32Key("llama.embedding_length", c.hidden);
    h.U32Key("llama.feed_forward_length", m.expert_width);
    h.U32Key("llama.expert_count", m.experts);
    h.U32Key("llama.expert_used_count", m.top_k);
    h.U32Key("llama.attention.head_count", a.heads);
    h.U32Key("llama.attention.head_count_kv", a.kv_heads);
    h.U32Key("llama.attention.key_length", a.head_dim);
    h.U32Key("llama.attention.value_length", a.head_dim);
    h.U32Key("llama.rope.dimension_count", a.head_dim);
    h.F32Key("llama.rope.freq_base", static_cast<float>(a.rope.theta));
    h.F32Key("llama.attention.layer_norm_rms_epsilon", c.norm_epsilon);
    h.U32Key("llama.vocab_size", c.vocab);
    h.StringKey("tokenizer.ggml.model", "no_vocab");
    Header out;
    out.Number(0x46554747, 4);  // "GGUF"
    out.Number(3, 4);
    out.Number(tensors_.size(), 8);
    out.Number(h.keys(), 8);
    Header infos;
    uint64_t offset = 0;
    for (const Tensor& tensor : tensors_) {
      infos.String(tensor.name);
      infos.Number(tensor.shape.size(), 4);
      for (const uint64_t n : tensor.shape) {
        infos.Number(n, 8);
      }
      infos.Number(static_cast<uint32_t>(tensor.type), 4);
      infos.Number(offset, 8);
      offset += (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    }
    return out.text() + h.text() + infos.text();
  }

  // Adds a dense tensor unchanged, or (`heads` > 0) with the rows of each head reordered for rope over
  // neighbours: rows i and i + half of a head become neighbours.
  absl::Status AddDense(std::string_view name, std::string gguf_name, uint32_t heads = 0) {
    const DenseTensor* tensor = pack_->FindDense(name);
    if (tensor == nullptr) {
      return absl::NotFoundError(absl::StrCat(pack_->dir(), ": no tensor ", std::string(name)));
    }
    Tensor out;
    out.name = std::move(gguf_name);
    out.type = TypeFor(tensor->encoding);
    out.shape = {tensor->cols};
    if (tensor->rows > 1) {
      out.shape.push_back(tensor->rows);
    }
    out.write = [this, tensor, heads, type = out.type](const Sink& sink) {
      return WriteDense(*tensor, heads, type, sink);
    };
    tensors_.push_back(std::move(out));
    return absl::OkStatus();
  }

  absl::Status WriteDense(const DenseTensor& tensor, uint32_t heads, Type type, const Sink& sink) const {
    std::vector<std::byte> record(RowBytes(tensor.encoding, tensor.cols));
    std::vector<float> row(tensor.cols);
    const uint64_t base = pack_->extents()[tensor.extent].offset + tensor.offset;
    for (uint32_t r = 0; r < tensor.rows; ++r) {
      uint32_t from = r;
      if (heads > 0) {
        const uint32_t head = tensor.rows / heads;
        from = r / head * head + r % head / 2 + r % 2 * (head / 2);
      }
      RETURN_IF_ERROR(dense_.ReadAt(base + uint64_t{from} * tensor.stride, absl::MakeSpan(record)));
      RETURN_IF_ERROR(DecodeRow(tensor.encoding, record.data(), absl::MakeSpan(row)));
      std::string bytes;
      AppendRow(type, row, &bytes);
      sink(bytes);
    }
    return absl::OkStatus();
  }

  void AddExperts(uint32_t layer, Part part, std::string gguf_name) {
    const PartView view = pack_->part(layer, 0, part);
    const bool transposed = part == Part::kDown && !pack_->by_outputs();
    Tensor out;
    out.name = std::move(gguf_name);
    out.type = TypeFor(view.encoding);
    out.shape = {transposed ? view.rows : view.cols, transposed ? view.cols : view.rows,
                 pack_->expert_count(layer)};
    out.write = [this, layer, part, type = out.type](const Sink& sink) {
      for (uint32_t expert = 0; expert < pack_->expert_count(layer); ++expert) {
        RETURN_IF_ERROR(WriteExpert(layer, expert, part, type, sink));
      }
      return absl::OkStatus();
    };
    tensors_.push_back(std::move(out));
  }

  absl::Status WriteExpert(uint32_t layer, uint32_t expert, Part part, Type type, const Sink& sink) const {
    const PartView view = pack_->part(layer, expert, part);
    const bool transposed = part == Part::kDown && !pack_->by_outputs();
    const uint64_t base = pack_->extents()[view.extent].offset + view.base;
    std::vector<std::byte> record(RowBytes(view.encoding, view.cols));
    std::vector<float> row(view.cols);
    std::vector<float> values(uint64_t{view.rows} * view.cols);
    for (uint32_t r = 0; r < view.rows; ++r) {
      RETURN_IF_ERROR(experts_.ReadAt(base + uint64_t{r} * view.stride, absl::MakeSpan(record)));
      RETURN_IF_ERROR(DecodeRow(view.encoding, record.data(), absl::MakeSpan(row)));
      for (uint32_t c = 0; c < view.cols; ++c) {
        values[transposed ? uint64_t{c} * view.rows + r : uint64_t{r} * view.cols + c] = row[c];
      }
    }
    const uint64_t length = transposed ? view.rows : view.cols;
    std::string bytes;
    for (uint64_t i = 0; i < values.size(); i += length) {
      AppendRow(type, absl::MakeConstSpan(values).subspan(i, length), &bytes);
    }
    sink(bytes);
    return absl::OkStatus();
  }

  absl::Status ListTensors() {
    const ModelConfig& config = pack_->config();
    RETURN_IF_ERROR(AddDense(dense::kEmbed, "token_embd.weight"));
    for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
      const AttentionConfig& a = config.layers[layer].attention;
      const auto add = [&](std::string_view name, const char* gguf, uint32_t heads = 0) {
        return AddDense(dense::LayerName(layer, name), absl::StrCat("blk.", layer, ".", gguf, ".weight"),
                        heads);
      };
      RETURN_IF_ERROR(add(dense::kAttnNorm, "attn_norm"));
      RETURN_IF_ERROR(add(dense::kQ, "attn_q", a.heads));
      RETURN_IF_ERROR(add(dense::kK, "attn_k", a.kv_heads));
      RETURN_IF_ERROR(add(dense::kV, "attn_v"));
      RETURN_IF_ERROR(add(dense::kO, "attn_output"));
      RETURN_IF_ERROR(add(dense::kFfnNorm, "ffn_norm"));
      RETURN_IF_ERROR(add(dense::kRouter, "ffn_gate_inp"));
      AddExperts(layer, Part::kGate, absl::StrCat("blk.", layer, ".ffn_gate_exps.weight"));
      AddExperts(layer, Part::kDown, absl::StrCat("blk.", layer, ".ffn_down_exps.weight"));
      AddExperts(layer, Part::kUp, absl::StrCat("blk.", layer, ".ffn_up_exps.weight"));
    }
    RETURN_IF_ERROR(AddDense(dense::kFinalNorm, "output_norm.weight"));
    return config.tied_embeddings ? absl::OkStatus() : AddDense(dense::kHead, "output.weight");
  }

  std::unique_ptr<Pack> pack_;
  File dense_;
  File experts_;
  std::vector<Tensor> tensors_;
};

absl::Status Run(const std::string& pack, const std::string& out) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Reference> reference, Reference::Open(pack));
  return reference->Write(out);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: gguf_reference PACK OUT.gguf\n");
    return 2;
  }
  const absl::Status status = sluice::Run(argv[1], argv[2]);
  if (!status.ok()) {
    std::fprintf(stderr, "gguf_reference: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
