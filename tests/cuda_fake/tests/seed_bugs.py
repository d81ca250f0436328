#!/usr/bin/env python3
"""Writes a CUDA source with many copies of one of the project's kernels, each with one bug.

Usage: seed_bugs.py SOURCE_ROOT KERNEL OUTPUT. A text that is to be replaced must stand in its kernel exactly once: a kernel
that has changed fails the build here, and its bug has to be sown anew. What must be found, in words of report.h's Name();
"wrong" is a bug that no check can see, only the comparison with the reference.
"""
import sys

NORM, ROUND, GEMV, TILES = "norm", "round", "gemv", "tiles"
ATTENTION, COEFFICIENTS, DOWN = "attention", "coefficients", "down"

# name, kernel, text, replacement, findings of which the first report must be one
BUGS = [
    ("none_norm", NORM, "", "", ""),
    ("none_round", ROUND, "", "", ""),
    ("none_gemv", GEMV, "", "", ""),
    ("none_tiles", TILES, "", "", ""),
    ("none_attention", ATTENTION, "", "", ""),
    ("none_coefficients", COEFFICIENTS, "", "", ""),
    ("none_down", DOWN, "", "", ""),
    ("norm_no_barrier_after_load", NORM, "from[k] : 0.0f;\n  }\n  __syncthreads();", "from[k] : 0.0f;\n  }",
     "race|uninitialised"),
    ("norm_no_barrier_before_factor", NORM, "  __syncthreads();\n  return shared_norm;", "  return shared_norm;",
     "race|uninitialised"),
    ("norm_barrier_of_one_warp", NORM, "    if (threadIdx.x == 0) {\n      shared_norm",
     "    __syncthreads();\n    if (threadIdx.x == 0) {\n      shared_norm", "barrier|race|uninitialised"),
    ("norm_load_one_too_many", NORM, "k < cols ? from[k] : 0.0f;\n  }", "k <= cols ? from[k] : 0.0f;\n  }", "out of bounds"),
    ("norm_load_one_too_few", NORM, "k < RoundedCodes(cols); k += blockDim.x) {\n    row[k]",
     "k + 1 < cols; k += blockDim.x) {\n    row[k]", "uninitialised"),
    ("norm_row_of_the_next", NORM, "(launch.ids == nullptr ? token", "(launch.ids == nullptr ? token + 1", "out of bounds"),
    ("norm_rows_overlap", NORM, "launch.y + blockIdx.x * launch.y_stride", "launch.y + blockIdx.x * (launch.y_stride - 1)", "race"),
    ("norm_sum_of_half_a_warp", NORM, "  if (threadIdx.x < kLanes) {\n    const float n",
     "  if (threadIdx.x < kLanes / 2) {\n    const float n", "mask|barrier"),
    ("norm_sum_reads_the_next", NORM, "const float d = x[k] - mean", "const float d = x[k + 1] - mean", "wrong"),
    ("norm_last_not_written", NORM, "y != nullptr && k < cols;", "y != nullptr && k + 1 < cols;", "uninitialised"),
    ("norm_weight_of_the_next", NORM, "norm.weight[k]", "norm.weight[k + 1]", "out of bounds"),
    ("norm_factor_by_all_lanes", NORM, "    if (threadIdx.x == 0) {\n      shared_norm", "    {\n      shared_norm", "race"),
    ("norm_without_epsilon", NORM, " + norm.epsilon", "", "wrong"),
    ("round_a_group_too_many", ROUND, "has_values && g < groups", "has_values && g <= groups",
     "race|out of bounds|uninitialised"),
    ("round_tail_not_guarded", ROUND, "k < cols ? from[k] : 0.0f;\n  }", "from[k];\n  }", "out of bounds"),
    ("round_tail_not_filled", ROUND, "k < RoundedCodes(to.cols); k += blockDim.x * own",
     "k + own < RoundedCodes(to.cols); k += blockDim.x * own", "uninitialised"),
    ("round_before_the_barrier", ROUND, "from[k] : 0.0f;\n  }\n  __syncthreads();", "from[k] : 0.0f;\n  }",
     "race|uninitialised"),
    ("round_sum_by_two_lanes", ROUND, "if (within == 0)", "if (within < 16)", "race"),
    ("round_warps_share_groups", ROUND, "first = threadIdx.x / kLanes * at_once;",
     "first = threadIdx.x / kLanes / 2 * at_once;", "race"),
    ("round_maximum_of_each_lane", ROUND, "MaxWithin<kWidth / own / 2>(fmaxf", "(fmaxf", "wrong"),
    ("gemv_waits_for_one_group_less", GEMV, "__pipeline_wait_prior(0)", "__pipeline_wait_prior(1)",
     "copy in flight|uninitialised"),
    ("gemv_does_not_commit", GEMV, "  __pipeline_commit();\n", "", "copy in flight|uninitialised"),
    ("gemv_no_barrier", GEMV, "  __syncthreads();\n  return reinterpret_cast<int*>(behind);",
     "  return reinterpret_cast<int*>(behind);", "race|uninitialised"),
    ("gemv_returns_before_the_barrier", GEMV, "  StagedRows x;\n  int* const behind",
     "  if (block * kQuantizedRows + threadIdx.x / kLanes * kDots >= part.rows) {\n    return;\n  }\n"
     "  StagedRows x;\n  int* const behind", "barrier|uninitialised"),
    ("gemv_codes_off_by_8_bytes", GEMV, "codes[r].Load(m, 16, rows[r], block", "codes[r].Load(m, 16, rows[r] + 8, block", "misaligned"),
    ("gemv_groups_not_guarded", GEMV, "const unsigned end = min(groups, first_group", "const unsigned end = max(groups, first_group",
     "out of bounds|uninitialised|race"),
    ("gemv_half_a_mask", GEMV, "running += ShuffleXor<4>(running);",
     "running += __shfl_xor_sync(0x0000ffffu, running, 4);", "mask"),
    ("gemv_shuffle_in_a_branch", GEMV, "running += ShuffleXor<4>(running);",
     "if (lane < 16) {\n    running += ShuffleXor<4>(running);\n  }", "mask"),
    ("gemv_tail_not_staged", GEMV, "i < pieces; i += blockDim.x", "i + 5 < pieces; i += blockDim.x", "uninitialised"),
    ("gemv_sums_not_ordered", GEMV, "    __syncwarp();\n    const unsigned first_group", "    const unsigned first_group", "race"),
    ("gemv_segments_not_ordered", GEMV, "    __syncwarp();\n    SegmentProducts", "    SegmentProducts", "race"),
    ("gemv_halves_share_a_sum", GEMV, "(kUnits / span) * 2 - 2 + half;", "(kUnits / span) * 2 - 2;", "race"),
    ("gemv_row_of_the_next", GEMV, "min(r, end - 1 - first)", "min(r, end - first)", "out of bounds"),
    ("gemv_row_too_many", GEMV, "min(part.rows, begin + kDots)", "min(part.rows + 1, begin + kDots)", "out of bounds"),
    ("gemv_lanes_write_alike", GEMV, "threadIdx.x % kDotLanes == 0 && row < end", "threadIdx.x % kDotLanes < 4 && row < end",
     "race"),
    ("gemv_sum_not_fused", GEMV, "running = fmaf(factor, fmaf(-zero, x_group.y, static_cast<float>(halves.x + halves.y)), running);",
     "running = running + factor * fmaf(-zero, x_group.y, static_cast<float>(halves.x + halves.y));", "wrong"),
    ("gemv_zero_not_subtracted", GEMV, "fmaf(-zero, x_group.y", "fmaf(zero, x_group.y", "wrong"),
    ("tiles_no_barrier_before_a_chunk", TILES, "  __syncthreads();\n  const unsigned pieces", "  const unsigned pieces", "race"),
    ("tiles_no_barrier_behind_a_chunk", TILES, "  __pipeline_wait_prior(0);\n  __syncthreads();\n", "  __pipeline_wait_prior(0);\n",
     "race|uninitialised"),
    ("tiles_do_not_wait", TILES, "  __pipeline_wait_prior(0);\n", "", "copy in flight|uninitialised"),
    ("tiles_row_beyond", TILES, "min(first_row, part.rows - 1)", "first_row", "out of bounds"),
    ("tiles_token_beyond", TILES, "const unsigned i = min(token, last);", "const unsigned i = token;", "out of bounds|uninitialised"),
    ("tiles_write_beyond", TILES, "row < part.rows && token < launch.tokens", "row < part.rows", "out of bounds"),
    ("tiles_product_in_a_branch", TILES, "      MultiplyBytes<", "      if (threadIdx.x % kLanes < 31) MultiplyBytes<", "mask"),
    ("tiles_columns_turned", TILES, "codes[0].Codes(unit), codes[1].Codes(unit), codes[0]", "codes[1].Codes(unit), codes[0].Codes(unit), codes[0]",
     "wrong"),
    ("tiles_scale_of_the_other_row", TILES, "{NumbersOf<kEncoding>(m, tile.rows[0], g),", "{NumbersOf<kEncoding>(m, tile.rows[1], g),", "wrong"),
    ("attention_no_barrier_before_softmax", ATTENTION, "    __syncthreads();\n    SoftmaxSpan", "    SoftmaxSpan",
     "race|uninitialised"),
    ("attention_no_barrier_before_values", ATTENTION, "    __syncthreads();\n    // Where tile",
     "    // Where tile", "race|uninitialised"),
    ("attention_waits_for_a_tile_less", ATTENTION, "__pipeline_wait_prior(kStages - 2)", "__pipeline_wait_prior(kStages - 1)",
     "copy in flight|uninitialised"),
    ("attention_page_of_the_next", ATTENTION, "pages[base / kPagePositions]", "pages[base / kPagePositions + 1]", "out of bounds"),
    ("attention_position_too_many", ATTENTION, "min(max(p, tile.first), tile.last) % kPagePositions", "p % kPagePositions",
     "out of bounds"),
    ("attention_values_beyond", ATTENTION, "min(begin + S::kTile, tile.last + 1);\n  if", "begin + S::kTile;\n  if",
     "out of bounds"),
    ("attention_sum_by_all_lanes", ATTENTION, "    if (lane == 0) {\n      tile.spans[h]", "    {\n      tile.spans[h]", "race"),
    ("attention_a_span_less", ATTENTION, "i < count; ++i", "i + 1 < count; ++i", "wrong"),
    ("attention_not_scaled", ATTENTION, "(kScaled ? dot * scale : dot) * launch.scale", "(kScaled ? dot * scale : dot)", "wrong"),
    ("coefficients_listed_before_the_flags", COEFFICIENTS, "  __syncthreads();\n  Compact(wanted, &list);", "  Compact(wanted, &list);",
     "race|uninitialised"),
    ("coefficients_list_not_waited_for", COEFFICIENTS, "wanted[threadIdx.x + kLanes] != 0, list);\n  }\n  __syncthreads();",
     "wanted[threadIdx.x + kLanes] != 0, list);\n  }", "race|uninitialised"),
    ("coefficients_dots_not_waited_for", COEFFICIENTS, "    __syncthreads();\n    if (threadIdx.x < list.count)",
     "    if (threadIdx.x < list.count)", "race|uninitialised"),
    ("coefficients_list_not_of_whole_fours", COEFFICIENTS, "if (count + lane < (count + 3) / 4 * 4)", "if (count + lane < count / 4 * 4)",
     "uninitialised"),
    ("coefficients_neurons_beyond", COEFFICIENTS, "const bool inside = n < e.neuron_end;", "const bool inside = true;",
     "out of bounds"),
    ("coefficients_kept_not_waited_for", COEFFICIENTS, "  Party::Wait();\n", "", "race|uninitialised"),
    ("coefficients_codes_of_the_next", COEFFICIENTS, "[(begin + four) / 4 * groups + g] = word",
     "[((begin + four) / 4 + 1) * groups + g] = word", "uninitialised|out of bounds"),
    ("coefficients_threshold_turned", COEFFICIENTS, "leads && fabsf(factor) < e.threshold", "leads && fabsf(factor) >= e.threshold",
     "wrong"),
    ("down_no_barrier", DOWN, "    __syncthreads();\n    if (has_column)", "    if (has_column)", "race|uninitialised"),
    ("down_one_buffer", DOWN, "    buffer ^= 1;", "    buffer ^= 0;", "race"),
    ("down_halves_in_a_branch", DOWN, "  KeepHalf<kSums>(", "  if (lane.four < 3) KeepHalf<kSums>(", "mask"),
    ("down_column_not_guarded", DOWN, "threadIdx.x < columns && c < tile.m.cols", "threadIdx.x < columns", "out of bounds|uninitialised"),
    ("down_neurons_of_the_next", DOWN, "tile.neuron + own * kNeurons, out", "tile.neuron + (own + 1) * kNeurons, out",
     "out of bounds"),
    ("down_neurons_that_are_not_kept", DOWN, "inside ? block->kept : 0", "inside ? kNeurons : 0", "uninitialised"),
    ("down_fours_twice", DOWN, "four += kFours", "four += kFours / 2", "wrong"),
    ("down_zeros_added", DOWN, "static_cast<float>(sum) - zeros", "static_cast<float>(sum) + zeros", "wrong"),
]

# Sources whose namespaces' contents make a copy, and the entry that a test calls.
SHARED = ["rounding.cuh", "dots.cuh"]
ROWS = "experts.cuh"
SOURCES = {
    NORM: ["rounding.cuh", "prepare.cu"],
    ROUND: ["rounding.cuh", "prepare.cu"],
    GEMV: [*SHARED, "matmul.cu"],
    TILES: ["tiles.cuh", "matmul_tiles.cu"],
    ATTENTION: ["attention.cuh", "attention.cu"],
    COEFFICIENTS: [ROWS, "expert_coefficients.cu"],
    DOWN: [ROWS, "expert_down.cu"],
}
ENTRIES = {
    NORM: ("prepare", "EnqueuePrepare"),
    ROUND: ("prepare", "EnqueuePrepare"),
    GEMV: ("matmul", "EnqueueMatMul"),
    TILES: ("tiles", "EnqueueMatMulTiles"),
    ATTENTION: ("attention", "EnqueueAttention"),
    COEFFICIENTS: ("coefficients", "EnqueueCoefficients"),
    DOWN: ("down", "EnqueueDown"),
}


# The form and the encoding that the test has are enough: copies compile in a tenth of the time.
BLOCKS = ("kQ5_0", "kQ6_K", "kIq4Nl")


def name_of(encoding):
    return ("blocks::" if encoding in BLOCKS else "Encoding::") + encoding


def case_of(encoding, what):
    return f"    case {name_of(encoding)}:\n" + what(encoding)


def tiles_of(encoding):
    return f"      return Enqueue<{name_of(encoding)}>(launch, part, launcher);\n"


def sum_of(encoding):
    return f"      return SumPair<Encoding::{encoding}, 0>(launch, block, sums);\n"


def shapes_of(heads, dim):
    return (f"    return one ? Enqueue<Shape<kKind, 1, {dim}>>(launch, widths, launcher)\n"
            f"               : Enqueue<Shape<kKind, {heads}, {dim}>>(launch, widths, launcher);\n")


ATTENTION_OF = """launch.kv.kind == KvKind::kF32   ? EnqueueOf<KvKind::kF32>(launch, launcher)
                            : launch.kv.kind == KvKind::kF16 ? EnqueueOf<KvKind::kF16>(launch, launcher)
                                                             : EnqueueOf<KvKind::kQ8>(launch, launcher);
"""
WITH_KIND = """  return WithKind<kTokens == 1, true>(
      m, [&](auto kind) { return DotsOf<decltype(kind), kRows, kTokens>(m, rows, x, sums); });
"""
SUM_WITH_KIND = """      WithKind<true, false>(block.expert->down, [&](auto kind) {
        SumPair<decltype(kind)::kEncoding, decltype(kind)::kGroup>(launch, block, sums);
      });
"""
SHORTER = {
    GEMV: [
        ("    return Enqueue<kDots>(launch, blocks, several, launcher);\n", "    return cudaErrorInvalidValue;\n"),
        (WITH_KIND, "  return DotsOf<RowKind<Encoding::kQ4, 64>, kRows, kTokens>(m, rows, x, sums);\n"),
        ("TakesTiles(launch, part)", "false"),
        ("EnqueueMatMulTiles(launch, part, launcher)", "cudaSuccess"),
        ("    PlainPart<kTokens>(launch, part, block);\n", ""),
    ],
    TILES: [
        *[(case_of(encoding, tiles_of), "") for encoding in ("kQ8", "kQ3", "kQ2")],
        *[(f"  if (part.weights.encoding == blocks::{encoding}) {{\n    return Enqueue<blocks::{encoding}>(launch, part, launcher);\n  }}\n",
           "") for encoding in ("kQ5_0", "kIq4Nl")],
        (tiles_of("kMxfp4"), "      return cudaErrorInvalidValue;\n"),
    ],
    ATTENTION: [
        (ATTENTION_OF, "EnqueueOf<KvKind::kF16>(launch, launcher);\n"),
        (shapes_of(4, 128), "    return cudaErrorInvalidValue;\n"),
        ("  " + shapes_of(8, 0).replace("\n  ", "\n").lstrip(), "  return cudaErrorInvalidValue;\n"),
    ],
    COEFFICIENTS: [("QuantizedDots<kDots, 1>(", "DotsOf<RowKind<Encoding::kQ4, 64>, kDots, 1>(")],
    DOWN: [(case_of(encoding, sum_of), "") for encoding in ("kBf16", "kF16", "kF32")]
    + [(SUM_WITH_KIND, "      SumPair<Encoding::kQ4, 64>(launch, block, sums);\n")],
}  # fmt: skip


def contents_of(text):
    """What stands in a source's namespace, which may be one within sluice::cuda."""
    inner = "namespace sluice::cuda::attention {\n"
    if inner in text:
        head, rest = text.split(inner)
        return head, "namespace attention {\n" + rest.split("}  // namespace sluice::cuda::attention\n")[0] + "}\n"
    head, rest = text.split("namespace sluice::cuda {\n")
    return head, rest.split("}  // namespace sluice::cuda\n")[0]


def body_of(root, kernel):
    """The includes of the kernel's sources but themselves, and what stands in their namespaces."""
    heads, bodies = [], []
    for name in SOURCES[kernel]:
        with open(f"{root}/kernels/cuda/device/{name}", encoding="utf-8") as source:
            head, body = contents_of(source.read())
        own = tuple(f"/device/{other}\"\n" for other in SOURCES[kernel])
        heads.append("".join(line for line in head.splitlines(True)
                             if line.startswith("#include") and not line.endswith(own)))
        bodies.append(body)
    body = "".join(bodies)
    for text, replacement in SHORTER.get(kernel, []):
        if body.count(text) != 1:
            sys.exit(f"seed_bugs.py: stands {body.count(text)} times: {text!r}")
        body = body.replace(text, replacement)
    return "".join(heads), body


def main():
    root, kernel, output = sys.argv[1:]
    head, source = body_of(root, kernel)
    parts = [head, '#include "tests/cuda_fake/tests/seeded_bugs.h"\nnamespace sluice::cuda {\n']
    table = []
    for name, of, text, replacement, findings in BUGS:
        if of != kernel:
            continue
        if text and source.count(text) != 1:
            sys.exit(f"seed_bugs.py: {name}: stands {source.count(text)} times in the sources of {kernel}: {text!r}")
        body = source.replace(text, replacement) if text else source
        parts.append(f"namespace {name} {{\n{body}}}  // namespace {name}\n")
        member, function = ENTRIES[kernel]
        table.append(f'    bugs->push_back({{"{name}", "{kernel}", "{findings}", {{}}}});\n'
                     f"    bugs->back().entries.{member} = cuda::{name}::{function};\n")
    parts.append("}  // namespace sluice::cuda\nnamespace sluice::cuda_fake {\n"
                 f"void AddBugsOf_{kernel}(std::vector<SeededBug>* bugs) {{\n" + "".join(table) +
                 "}\n}  // namespace sluice::cuda_fake\n")
    with open(output, "w", encoding="utf-8") as out:
        out.write("".join(parts))


if __name__ == "__main__":
    main()
