#!/usr/bin/env python3
"""Writes one CUDA source with many copies of the project's kernels, each with one bug.

Usage: seed_bugs.py SOURCE_ROOT OUTPUT. A text that is to be replaced must stand in its kernel exactly once: a kernel
that has changed fails the build here, and its bug has to be sown anew. What must be found, in words of report.h's Name();
"wrong" is a bug that no check can see, only the comparison with the reference.
"""
import sys

NORM, ROUND, GEMV = "norm", "round", "gemv"

# name, kernel, text, replacement, findings of which the first report must be one
BUGS = [
    ("none_norm", NORM, "", "", ""),
    ("none_round", ROUND, "", "", ""),
    ("none_gemv", GEMV, "", "", ""),
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
    ("round_a_group_too_many", ROUND, "g < groups && k < RoundedCodes(to.cols)", "g <= groups && k < RoundedCodes(to.cols)",
     "race|out of bounds|uninitialised"),
    ("round_tail_not_guarded", ROUND, "k < cols ? from[k] : 0.0f;\n  }", "from[k];\n  }", "out of bounds"),
    ("round_tail_not_filled", ROUND, "k < RoundedCodes(to.cols); k += blockDim.x * 4",
     "k + 4 < RoundedCodes(to.cols); k += blockDim.x * 4", "uninitialised"),
    ("round_before_the_barrier", ROUND, "from[k] : 0.0f;\n  }\n  __syncthreads();", "from[k] : 0.0f;\n  }",
     "race|uninitialised"),
    ("round_sum_by_two_lanes", ROUND, "if (within == 0)", "if (within < 8)", "race"),
    ("round_warps_share_groups", ROUND, "first = threadIdx.x / kLanes * at_once;",
     "first = threadIdx.x / kLanes / 2 * at_once;", "race"),
    ("round_maximum_of_each_lane", ROUND,
     "      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));\n", "", "wrong"),
    ("gemv_waits_for_one_group_less", GEMV, "__pipeline_wait_prior(0)", "__pipeline_wait_prior(1)",
     "copy in flight|uninitialised"),
    ("gemv_does_not_commit", GEMV, "  __pipeline_commit();\n", "", "copy in flight|uninitialised"),
    ("gemv_no_barrier", GEMV, "  __syncthreads();\n  return reinterpret_cast<int*>(behind);",
     "  return reinterpret_cast<int*>(behind);", "race|uninitialised"),
    ("gemv_returns_before_the_barrier", GEMV, "  StagedRows x;\n  int* const behind",
     "  if (block * kQuantizedRows + threadIdx.x / kLanes * kDots >= part.rows) {\n    return;\n  }\n"
     "  StagedRows x;\n  int* const behind", "barrier|uninitialised"),
    ("gemv_codes_off_by_8_bytes", GEMV, "codes[r].Load(m, rows[r], block", "codes[r].Load(m, rows[r] + 8, block", "misaligned"),
    ("gemv_groups_not_guarded", GEMV, "const unsigned end = min(groups, first_group", "const unsigned end = max(groups, first_group",
     "out of bounds|uninitialised|race"),
    ("gemv_half_a_mask", GEMV, "running += __shfl_xor_sync(kAllLanes, running, distance);",
     "running += __shfl_xor_sync(0x0000ffffu, running, distance);", "mask"),
    ("gemv_shuffle_in_a_branch", GEMV, "running += __shfl_xor_sync(kAllLanes, running, distance);",
     "if (lane < 16) {\n      running += __shfl_xor_sync(kAllLanes, running, distance);\n    }", "mask"),
    ("gemv_tail_not_staged", GEMV, "i < pieces; i += blockDim.x", "i + 5 < pieces; i += blockDim.x", "uninitialised"),
    ("gemv_sums_not_ordered", GEMV, "    __syncwarp();\n    const unsigned first_group", "    const unsigned first_group", "race"),
    ("gemv_segments_not_ordered", GEMV, "    __syncwarp();\n    SegmentProducts", "    SegmentProducts", "race"),
    ("gemv_halves_share_a_sum", GEMV, "(kUnits / span) * 2 + half;", "(kUnits / span) * 2;", "race"),
    ("gemv_row_of_the_next", GEMV, "min(first + r, end - 1)", "min(first + r, end)", "out of bounds"),
    ("gemv_row_too_many", GEMV, "min(part.rows, begin + kDots)", "min(part.rows + 1, begin + kDots)", "out of bounds"),
    ("gemv_lanes_write_alike", GEMV, "threadIdx.x % kDotLanes == 0 && row < end", "threadIdx.x % kDotLanes < 4 && row < end",
     "race"),
    ("gemv_sum_not_fused", GEMV, "running = fmaf(factor, fmaf(-zero, x_group.y, static_cast<float>(halves.x + halves.y)), running);",
     "running = running + factor * fmaf(-zero, x_group.y, static_cast<float>(halves.x + halves.y));", "wrong"),
    ("gemv_zero_not_subtracted", GEMV, "fmaf(-zero, x_group.y", "fmaf(zero, x_group.y", "wrong"),
]

# Sources whose namespaces' contents make a copy, and the entry that a test calls.
SHARED = ["rounding.cuh", "dots.cuh"]
SOURCES = {NORM: ["rounding.cuh", "prepare.cu"], ROUND: ["rounding.cuh", "prepare.cu"], GEMV: [*SHARED, "matmul.cu"]}
ENTRIES = {NORM: ("prepare", "EnqueuePrepare"), ROUND: ("prepare", "EnqueuePrepare"), GEMV: ("matmul", "EnqueueMatMul")}


# One token and the encoding that the test has are enough: copies compile in a tenth of the time.
def dots_of(encoding):
    return f"      return DotsOf<Encoding::{encoding}, kRows, kTokens>(m, rows, x, sums);\n"


def case_of(encoding):
    return f"    case Encoding::{encoding}:\n" + dots_of(encoding)


SHORTER = {GEMV: [("    return Enqueue<kDots>(launch, blocks, several, stream);\n", "    return cudaErrorInvalidValue;\n"),
                  (case_of("kQ8"), ""), (case_of("kQ3"), ""), (case_of("kQ2"), ""),
                  (dots_of("kMxfp4"), "      return 0.0f;\n"),
                  ("TakesTiles(launch, part)", "false"),
                  ("EnqueueMatMulTiles(launch, part, stream)", "cudaSuccess"),
                  ("    PlainPart<kTokens>(launch, part, block);\n", "")]}


def body_of(root, kernel):
    """The includes of the kernel's sources, and what stands in their namespaces."""
    heads, bodies = [], []
    for name in SOURCES[kernel]:
        with open(f"{root}/kernels/cuda/device/{name}", encoding="utf-8") as source:
            text = source.read()
        head, rest = text.split("namespace sluice::cuda {\n")
        heads.append("".join(line for line in head.splitlines(True)
                             if line.startswith("#include") and not any(name in line for name in SHARED)))
        bodies.append(rest.split("}  // namespace sluice::cuda\n")[0])
    body = "".join(bodies)
    for text, replacement in SHORTER.get(kernel, []):
        if body.count(text) != 1:
            sys.exit(f"seed_bugs.py: stands {body.count(text)} times: {text!r}")
        body = body.replace(text, replacement)
    return "".join(heads), body


def main():
    root, output = sys.argv[1:]
    sources = {kernel: body_of(root, kernel) for kernel in ENTRIES}
    parts = [head for head, _ in sources.values()]
    parts.append('#include "tests/cuda_fake/tests/seeded_bugs.h"\nnamespace sluice::cuda {\n')
    table = []
    for name, kernel, text, replacement, findings in BUGS:
        body = sources[kernel][1]
        if text:
            if body.count(text) != 1:
                sys.exit(f"seed_bugs.py: {name}: stands {body.count(text)} times in the sources of {kernel}: {text!r}")
            body = body.replace(text, replacement)
        parts.append(f"namespace {name} {{\n{body}}}  // namespace {name}\n")
        member, function = ENTRIES[kernel]
        table.append(f'    bugs.push_back({{"{name}", "{kernel}", "{findings}", {{}}}});\n'
                     f"    bugs.back().entries.{member} = cuda::{name}::{function};\n")
    parts.append("}  // namespace sluice::cuda\nnamespace sluice::cuda_fake {\n"
                 "std::vector<SeededBug> SeededBugs() {\n    std::vector<SeededBug> bugs;\n" + "".join(table) +
                 "    return bugs;\n}\n}  // namespace sluice::cuda_fake\n")
    with open(output, "w", encoding="utf-8") as out:
        out.write("".join(parts))


if __name__ == "__main__":
    main()
