#include "common/model/gguf_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/half.h"
#include "common/base/status.h"
#include "common/model/gguf_config.h"
#include "common/model/gguf_files.h"
#include "common/model/gguf_views.h"

namespace sluice {
namespace {

// Part of the fingerprint: changes when blocks are decoded to other values.
constexpr char kGgufDecoderVersion[] = "gguf 2\n";

ElementType TypeOf(const GgufBlockFormat& format) {
  switch (format.id) {
    case kGgufF16:
      return ElementType::kF16;
    case kGgufBf16:
    case kGgufMxfp4:  // products of a power of two and an E2M1 value fit
      return ElementType::kBf16;
    case kGgufI32:
      return ElementType::kI32;
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
      if (!view.tiles.columns) tensor.blocks = view.source->format->rows;
      if (view.undo != GgufUndo::kNone && view.source->format->id != kGgufF32) {
        return absl::UnimplementedError(absl::StrCat(checkpoint->files_->PathOf(*view.source), ": tensor ",
                                                     view.source->name, " is ", tensor.format,
                                                     "; only F32 is supported for it"));
      }
      tensor.source_index = i;
      ASSIGN_OR_RETURN(const float factor, FactorOf(*checkpoint->files_, view));
      checkpoint->factors_.push_back(factor);
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
    const GgufView& view = views_[tensor.source_index];
    if (view.tiles.columns) return ReadTiles(tensor, rect, out);
    const GgufBlockFormat& format = *view.source->format;
    const uint64_t line_bytes = rect.columns * ElementBytes(tensor.type);
    RETURN_IF_ERROR(ReadLines(tensor, rect, [&](uint64_t line, const std::byte* raw, uint64_t skip) {
      Decode(format, factors_[tensor.source_index], raw, skip, rect.columns, out.data() + line * line_bytes);
    }));
    if (view.undo != GgufUndo::kNone) Undo(view, out);
    return absl::OkStatus();
  }

  absl::Status ReadBlocks(const CheckpointTensor& tensor, const TensorRect& rect,
                          absl::Span<CodeBlock> out) const override {
    const GgufBlockFormat& format = *views_[tensor.source_index].source->format;
    const uint64_t blocks = rect.columns / format.values;
    return ReadLines(tensor, rect, [&](uint64_t line, const std::byte* raw, uint64_t /*skip*/) {
      for (uint64_t b = 0; b < blocks; ++b) {
        format.unpack(reinterpret_cast<const uint8_t*>(raw) + b * format.bytes, &out[line * blocks + b]);
        out[line * blocks + b].factor = factors_[tensor.source_index];
      }
    });
  }

  std::optional<StoredLines> LinesInFile(const CheckpointTensor& tensor) const override {
    const GgufView& view = views_[tensor.source_index];
    const GgufTensorInfo& source = *view.source;
    const bool whole_lines = view.first_column == 0 && tensor.line_length() == source.dims[0];
    if (!whole_lines || !IsInOrder(view) || view.undo != GgufUndo::kNone) return std::nullopt;
    return StoredLines{.path = files_->PathOf(source),
                       .offset = source.offset + view.first_line * source.row_bytes(),
                       .line_bytes = source.row_bytes(),
                       .factor = factors_[tensor.source_index]};
  }

  const std::string& PathOf(const CheckpointTensor& tensor) const override {
    return files_->PathOf(*views_[tensor.source_index].source);
  }

  std::string fingerprint() const override { return files_->fingerprint() + kGgufDecoderVersion; }

 private:
  // Reads the factor of a view's values.
  static absl::StatusOr<float> FactorOf(const GgufFiles& files, const GgufView& view) {
    if (view.factors == nullptr) return 1.0f;
    ASSIGN_OR_RETURN(const std::vector<float> factors, files.ReadSmall(*view.factors));
    const size_t index = factors.size() == 1 ? 0 : view.expert;
    // A tensor of another rank than three is one expert's, or no expert's at all.
    const uint64_t experts = view.source->dims.size() == 3 ? view.source->dims[2] : 1;
    if (factors.size() != 1 && factors.size() != experts) {
      return absl::InvalidArgumentError(absl::StrCat(files.PathOf(*view.factors), ": tensor ",
                                                     view.factors->name, " has ", factors.size(),
                                                     " values, expected 1 or ", experts));
    }
    if (!std::isfinite(factors[index])) {
      return absl::InvalidArgumentError(absl::StrCat(files.PathOf(*view.factors), ": tensor ",
                                                     view.factors->name, " holds ", factors[index], " at [",
                                                     index, "]"));
    }
    return factors[index];
  }

  // Reads lines whose heads are stored in tiles: reads whole lines and reorders them.
  absl::Status ReadTiles(const CheckpointTensor& tensor, const TensorRect& rect,
                         absl::Span<std::byte> out) const {
    const GgufView& view = views_[tensor.source_index];
    const uint64_t width = ElementBytes(tensor.type);
    const TensorRect whole{
        .line = rect.line, .lines = rect.lines, .column = 0, .columns = tensor.line_length()};
    std::vector<std::byte> line_bytes(whole.columns * width);
    RETURN_IF_ERROR(ReadLines(tensor, whole, [&](uint64_t line, const std::byte* raw, uint64_t skip) {
      Decode(*view.source->format, factors_[tensor.source_index], raw, skip, whole.columns,
             line_bytes.data());
      std::byte* const to = out.data() + line * rect.columns * width;
      for (uint64_t i = 0; i < rect.columns; ++i) {
        std::memcpy(to + i * width, line_bytes.data() + InTiles(view.tiles, rect.column + i) * width, width);
      }
    }));
    if (view.undo != GgufUndo::kNone) Undo(view, out);
    return absl::OkStatus();
  }

  // Undoes the converter's change of float32 values; other types were not changed (checked in Make).
  static void Undo(const GgufView& view, absl::Span<std::byte> values) {
    for (size_t at = 0; at < values.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, values.data() + at, sizeof(value));
      // The logarithm of a value of the wrong sign is NaN or Inf, which readers refuse.
      value = view.undo == GgufUndo::kMinusOne        ? value - 1
              : view.undo == GgufUndo::kLogOfNegative ? std::log(-value)
                                                      : std::log(value);
      std::memcpy(values.data() + at, &value, sizeof(value));
    }
  }

  // Maps the index of a value (or line) in the hub's order to its index in the file.
  static uint64_t InTiles(const GgufHeadTiles& tiles, uint64_t place) {
    if (place < tiles.first) return place;
    const uint64_t head = (place - tiles.first) / tiles.length;
    const uint64_t stored = head % tiles.sharers * tiles.keys + head / tiles.sharers;
    return tiles.first + stored * tiles.length + (place - tiles.first) % tiles.length;
  }

  static bool IsInOrder(const GgufView& view) {
    return view.paired_head == 0 && view.tiles.keys == 0 && view.run == 0;
  }

  static uint64_t SourceLine(const GgufView& view, uint64_t line) {
    if (view.run > 0) return view.first_line + line + line / view.run * view.run;
    if (view.tiles.keys > 0 && !view.tiles.columns) return view.first_line + InTiles(view.tiles, line);
    if (view.paired_head == 0) return view.first_line + line;
    const uint64_t head = line / view.paired_head * view.paired_head;
    const uint64_t half = view.paired_head / 2;
    const uint64_t within = line % view.paired_head;
    return view.first_line + head + 2 * (within % half) + within / half;
  }

  // Calls use(line of the rect, its first block, values of that block before the rect) for each line of
  // `rect`.
  template <typename Use>
  absl::Status ReadLines(const CheckpointTensor& to_read, const TensorRect& rect, const Use& use) const {
    const GgufView& view = views_[to_read.source_index];
    const GgufTensorInfo& tensor = *view.source;
    const GgufBlockFormat& format = *tensor.format;
    const uint64_t column = view.first_column + rect.column;
    const uint64_t first_block = column / format.values;
    const uint64_t bytes = ((column + rect.columns - 1) / format.values - first_block + 1) * format.bytes;
    // Adjacent lines of the file are one read; the size of the rect bounds its memory.
    const bool at_once = IsInOrder(view) && bytes == tensor.row_bytes();
    const uint64_t step = at_once ? rect.lines : 1;
    std::vector<std::byte> raw(step * bytes);
    for (uint64_t line = 0; line < rect.lines; ++line) {
      if (line % step == 0) {
        RETURN_IF_ERROR(files_->Read(
            tensor, SourceLine(view, rect.line + line) * tensor.row_bytes() + first_block * format.bytes,
            absl::MakeSpan(raw)));
      }
      use(line, raw.data() + line % step * bytes, column % format.values);
    }
    return absl::OkStatus();
  }

  static void DecodeBlock(const GgufBlockFormat& format, float factor, const uint8_t* block, float* values) {
    if (factor == 1) return format.decode(block, values);
    // Rounded as ReadBlocks' blocks decode.
    CodeBlock codes;
    format.unpack(block, &codes);
    codes.factor = factor;
    DecodeCodeBlock(format.rows, codes, values);
  }

  // Decodes values [skip, skip + count) of the blocks at `raw`.
  static void Decode(const GgufBlockFormat& format, float factor, const std::byte* raw, uint64_t skip,
                     uint64_t count, std::byte* out) {
    if (format.values == 1) {
      std::memcpy(out, raw, count * format.bytes);
      return;
    }
    float values[kMaxBlockValues];
    for (; count > 0; raw += format.bytes) {
      DecodeBlock(format, factor, reinterpret_cast<const uint8_t*>(raw), values);
      const uint64_t part = std::min(count, format.values - skip);
      if (format.id == kGgufMxfp4) {
        for (uint64_t i = 0; i < part; ++i, out += 2) {
          const uint16_t bits = FloatToBf16(values[skip + i]);
          std::memcpy(out, &bits, 2);
        }
      } else {
        std::memcpy(out, values + skip, part * sizeof(float));
        out += part * sizeof(float);
      }
      count -= part;
      skip = 0;
    }
  }

  std::unique_ptr<GgufFiles> files_;
  std::vector<GgufView> views_;  // by CheckpointTensor::source_index; points into files_
  std::vector<float> factors_;   // of each view's values
};

}  // namespace

absl::StatusOr<GgufModel> ReadGgufMetadata(const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<GgufFiles> files, GgufFiles::OpenMetadata(path));
  ASSIGN_OR_RETURN(const GgufConfig config, ReadGgufConfig(*files));
  GgufModel model;
  model.config_json = config.config_json;
  model.generation_json = config.generation_json;
  model.chat_template = config.chat_template;
  return model;
}

absl::StatusOr<GgufModel> OpenGguf(const std::string& path, bool mtp_layers) {
  ASSIGN_OR_RETURN(std::unique_ptr<GgufFiles> files, GgufFiles::Open(path));
  ASSIGN_OR_RETURN(const GgufConfig config, ReadGgufConfig(*files));
  GgufModel model;
  model.config_json = config.config_json;
  model.generation_json = config.generation_json;
  model.chat_template = config.chat_template;
  ASSIGN_OR_RETURN(model.tokenizer_files, GgufTokenizerFiles(files->keys()));
  model.mtp_layers =
      mtp_layers && config.shape.blocks > config.shape.layers && !config.architecture->mtp_modules.empty();
  std::vector<GgufView> views = GgufViews(*files, *config.architecture, config.shape, mtp_layers);
  ASSIGN_OR_RETURN(model.checkpoint, GgufCheckpoint::Make(std::move(files), std::move(views)));
  return model;
}

}  // namespace sluice
