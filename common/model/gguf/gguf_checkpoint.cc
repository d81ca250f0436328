#include "common/model/gguf/gguf_checkpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "common/half.h"
#include "common/model/gguf/gguf_config.h"
#include "common/model/gguf/gguf_files.h"
#include "common/model/gguf/gguf_tokenizer.h"
#include "common/model/gguf/gguf_views.h"
#include "common/status.h"

namespace sluice {
namespace {

// Part of the fingerprint: changes when blocks are decoded to other values.
constexpr char kDecoderVersion[] = "gguf 1\n";

ElementType TypeOf(const GgufBlockFormat& format) {
  switch (format.id) {
    case kGgufF16:
      return ElementType::kF16;
    case kGgufBf16:
    case kGgufMxfp4:  // a power of two times E2M1 fits
      return ElementType::kBf16;
    default:
      return ElementType::kF32;
  }
}

class GgufCheckpoint final : public Checkpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Make(std::unique_ptr<GgufFiles> files,
                                                          std::vector<GgufView> views) {
    auto checkpoint = std::make_unique<GgufCheckpoint>();
    checkpoint->files_ = std::move(files);
    checkpoint->views_ = std::move(views);
    std::vector<CheckpointTensor> tensors;
    for (uint32_t i = 0; i < checkpoint->views_.size(); ++i) {
      const GgufView& view = checkpoint->views_[i];
      CheckpointTensor tensor{.name = view.name, .shape = view.shape};
      tensor.type = TypeOf(*view.source->format);
      tensor.format = view.source->format->name;
      tensor.decoded = true;
      tensor.mxfp4 = view.source->format->id == kGgufMxfp4;
      tensor.place = i;
      if (absl::EndsWith(view.name, ".scale")) {
        ASSIGN_OR_RETURN(const std::vector<float> scales, checkpoint->files_->ReadSmall(*view.source));
        tensor.is_neutral = std::all_of(scales.begin(), scales.end(), [](float scale) { return scale == 1; });
      }
      tensors.push_back(std::move(tensor));
    }
    RETURN_IF_ERROR(checkpoint->SetTensors(std::move(tensors)));
    return checkpoint;
  }

  absl::Status Read(const CheckpointTensor& tensor, const TensorRect& rect,
                    absl::Span<std::byte> out) const override {
    const GgufView& view = views_[tensor.place];
    const uint64_t line_bytes = rect.columns * ElementBytes(tensor.type);
    std::vector<std::byte> raw;
    for (uint64_t done = 0; done < rect.lines;) {
      const uint64_t source = SourceLine(view, rect.line + done);
      const uint64_t lines = view.paired_head > 0 ? 1 : rect.lines - done;
      RETURN_IF_ERROR(ReadLines(view, source, lines, rect, &raw, out.subspan(done * line_bytes)));
      done += lines;
    }
    return absl::OkStatus();
  }

  const std::string& PathOf(const CheckpointTensor& tensor) const override {
    return files_->PathOf(*views_[tensor.place].source);
  }

  std::string fingerprint() const override { return files_->fingerprint() + kDecoderVersion; }

 private:
  static uint64_t SourceLine(const GgufView& view, uint64_t line) {
    if (view.paired_head == 0) return view.first_line + line;
    const uint64_t head = line / view.paired_head * view.paired_head;
    const uint64_t half = view.paired_head / 2;
    const uint64_t within = line % view.paired_head;
    return view.first_line + head + 2 * (within % half) + within / half;
  }

  // The rect's columns of `lines` lines from line `source` on of the view's source.
  absl::Status ReadLines(const GgufView& view, uint64_t source, uint64_t lines, const TensorRect& rect,
                         std::vector<std::byte>* raw, absl::Span<std::byte> out) const {
    const GgufTensorInfo& tensor = *view.source;
    const GgufBlockFormat& format = *tensor.format;
    const uint64_t column = view.first_column + rect.column;
    const uint64_t first_block = column / format.values;
    const uint64_t blocks = (column + rect.columns - 1) / format.values - first_block + 1;
    const uint64_t bytes = blocks * format.bytes;
    raw->resize(lines * bytes);
    if (bytes == tensor.row_bytes()) {
      RETURN_IF_ERROR(files_->Read(tensor, source * bytes, absl::MakeSpan(*raw)));
    } else {
      for (uint64_t i = 0; i < lines; ++i) {
        RETURN_IF_ERROR(files_->Read(tensor, (source + i) * tensor.row_bytes() + first_block * format.bytes,
                                     absl::MakeSpan(*raw).subspan(i * bytes, bytes)));
      }
    }
    for (uint64_t i = 0; i < lines; ++i) {
      Decode(format, raw->data() + i * bytes, column % format.values, rect.columns,
             out.data() + i * rect.columns * ElementBytes(TypeOf(format)));
    }
    return absl::OkStatus();
  }

  // Values [skip, skip + count) of the blocks at `raw`.
  static void Decode(const GgufBlockFormat& format, const std::byte* raw, uint64_t skip, uint64_t count,
                     std::byte* out) {
    if (format.values == 1) {
      std::memcpy(out, raw, count * format.bytes);
      return;
    }
    constexpr uint32_t kMaxBlockValues = 256;
    float values[kMaxBlockValues];
    for (; count > 0; raw += format.bytes) {
      format.decode(reinterpret_cast<const uint8_t*>(raw), values);
      const uint64_t part = std::min(count, format.values - skip);
      for (uint64_t i = 0; i < part; ++i) {
        if (format.id == kGgufMxfp4) {
          const uint16_t bits = FloatToBf16(values[skip + i]);
          std::memcpy(out + 2 * i, &bits, 2);
        } else {
          std::memcpy(out + 4 * i, &values[skip + i], 4);
        }
      }
      out += part * (format.id == kGgufMxfp4 ? 2 : 4);
      count -= part;
      skip = 0;
    }
  }

  std::unique_ptr<GgufFiles> files_;
  std::vector<GgufView> views_;  // by CheckpointTensor::place; points into files_
};

}  // namespace

absl::StatusOr<GgufModel> ReadGgufHead(const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<GgufFiles> files, GgufFiles::OpenHead(path));
  ASSIGN_OR_RETURN(const GgufConfig config, ReadGgufConfig(*files));
  GgufModel model;
  model.config_json = config.config_json;
  model.generation_json = config.generation_json;
  model.chat_template = config.chat_template;
  return model;
}

absl::StatusOr<GgufModel> OpenGguf(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<GgufFiles> files, GgufFiles::Open(path));
  ASSIGN_OR_RETURN(const GgufConfig config, ReadGgufConfig(*files));
  GgufModel model;
  model.config_json = config.config_json;
  model.generation_json = config.generation_json;
  model.chat_template = config.chat_template;
  ASSIGN_OR_RETURN(model.tokenizer_files, GgufTokenizerFiles(files->keys()));
  std::vector<GgufView> views = GgufViews(*files, *config.architecture, config.shape);
  ASSIGN_OR_RETURN(model.checkpoint, GgufCheckpoint::Make(std::move(files), std::move(views)));
  return model;
}

}  // namespace sluice
