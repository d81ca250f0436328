#!/usr/bin/env python3
"""Writes one CUDA source with many copies of the project's kernels, each with one bug.

Usage: seed_bugs.py SOURCE_ROOT OUTPUT. A text that is to be replaced must stand in its kernel exactly once: a kernel
that has changed fails the build here, and its bug has to be sown anew. What must be found, in words of report.h's Name();
"wrong" is a bug that no check can see, only the comparison with the reference.
"""
import sys

NORM, ROUND, GEMV = "rms_norm", "round_rows", "gemv_q4"

# name, kernel, text, replacement, findings of which the first report must be one
BUGS = [
    ("none_norm", NORM, "", "", ""),
    ("none_round", ROUND, "", "", ""),
    ("none_gemv", GEMV, "", "", ""),
    ("norm_no_barrier_after_load", NORM, "  __syncthreads();\n  if (threadIdx.x < kLanes) {", "  if (threadIdx.x < kLanes) {",
     "race|uninitialised"),
    ("norm_no_barrier_before_factor", NORM, "  __syncthreads();\n  float4* const y", "  float4* const y",
     "race|uninitialised"),
    ("norm_barrier_of_one_warp", NORM, "    const float squares = WarpTreeSum(sum);",
     "    const float squares = WarpTreeSum(sum);\n    __syncthreads();", "barrier|race|uninitialised"),
    ("norm_load_one_too_many", NORM, "i < quads; i += kThreads) {\n    row[i]", "i <= quads; i += kThreads) {\n    row[i]",
     "out of bounds"),
    ("norm_load_one_too_few", NORM, "i < quads; i += kThreads) {\n    row[i]", "i + 1 < quads; i += kThreads) {\n    row[i]",
     "uninitialised"),
    ("norm_row_off_by_a_value", NORM, "launch.x + uint64_t{blockIdx.x} * launch.cols",
     "launch.x + uint64_t{blockIdx.x} * launch.cols + 1", "misaligned"),
    ("norm_sum_of_half_a_warp", NORM, "if (threadIdx.x < kLanes) {", "if (threadIdx.x < kLanes / 2) {", "mask|barrier"),
    ("norm_sum_reads_the_next", NORM, "fmaf(values[k], values[k], sum)", "fmaf(values[k + 1], values[k + 1], sum)",
     "out of bounds"),
    ("norm_last_not_written", NORM, "i < quads; i += kThreads) {\n    float4 v", "i + 1 < quads; i += kThreads) {\n    float4 v",
     "uninitialised"),
    ("norm_weight_of_the_next", NORM, "weight[i]", "weight[i + 1]", "out of bounds"),
    ("norm_factor_by_all_lanes", NORM, "    if (threadIdx.x == 0) {\n      factor", "    {\n      factor", "race"),
    ("norm_without_epsilon", NORM, " + launch.epsilon", "", "wrong"),
    ("round_blocks_overlap", ROUND, "g = blockIdx.x * kWarps", "g = blockIdx.x * (kWarps - 1)", "race|uninitialised"),
    ("round_a_group_too_many", ROUND, "if (g >= groups)", "if (g > groups)", "race|out of bounds|uninitialised"),
    ("round_tail_not_guarded", ROUND, "first + kLanes < launch.cols ? x[first + kLanes] : 0.0f", "x[first + kLanes]",
     "out of bounds"),
    ("round_sum_by_two_lanes", ROUND, "if (lane == 0)", "if (lane < 2)", "race"),
    ("round_maximum_of_one_half", ROUND, "WarpMax(fmaxf(fabsf(a), fabsf(b)))", "WarpMax(fabsf(a))", "wrong"),
    ("gemv_waits_for_one_group_less", GEMV, "__pipeline_wait_prior(0)", "__pipeline_wait_prior(1)",
     "copy in flight|uninitialised"),
    ("gemv_does_not_commit", GEMV, "  __pipeline_commit();\n", "", "copy in flight|uninitialised"),
    ("gemv_no_barrier", GEMV, "  __syncthreads();\n", "", "race|uninitialised"),
    ("gemv_returns_before_the_barrier", GEMV, "  const int4* const x =",
     "  if (blockIdx.x * kWarps + threadIdx.x / kLanes >= launch.rows) {\n    return;\n  }\n  const int4* const x =",
     "barrier|uninitialised"),
    ("gemv_codes_off_by_8_bytes", GEMV, "reinterpret_cast<const uint4*>(weights)", "reinterpret_cast<const uint4*>(weights + 8)",
     "misaligned"),
    ("gemv_groups_not_guarded", GEMV, "    if (g < groups) {\n      const uint4 c", "    {\n      const uint4 c",
     "out of bounds|uninitialised"),
    ("gemv_half_a_mask", GEMV, "__shfl_xor_sync(kAllLanes, dot, 1)", "__shfl_xor_sync(0x0000ffffu, dot, 1)", "mask"),
    ("gemv_shuffle_in_a_branch", GEMV, "    dot += __shfl_xor_sync(kAllLanes, dot, 1);\n    if (g < groups) {",
     "    if (g < groups) {\n      dot += __shfl_xor_sync(kAllLanes, dot, 1);", "mask"),
    ("gemv_tail_not_staged", GEMV, "threadIdx.x < 2) {", "threadIdx.x < 1) {", "uninitialised"),
    ("gemv_row_of_the_next", GEMV, "launch.weights + row * launch.stride", "launch.weights + (row + 1) * launch.stride",
     "out of bounds"),
    ("gemv_row_too_many", GEMV, "if (row >= launch.rows)", "if (row > launch.rows)", "out of bounds"),
    ("gemv_all_lanes_write", GEMV, "if (lane == 0)", "if (lane < 4)", "race"),
    ("gemv_partner_first", GEMV,
     "    sum = fmaf(scale, t, sum);\n    sum = fmaf(partner_scale, partner_t, sum);",
     "    sum = fmaf(partner_scale, partner_t, sum);\n    sum = fmaf(scale, t, sum);", "wrong"),
    ("gemv_zero_not_subtracted", GEMV, "fmaf(-__half2float(zeros[g])", "fmaf(__half2float(zeros[g])", "wrong"),
]

ENTRIES = {NORM: ("rms_norm", "EnqueueRmsNorm"), ROUND: ("round_rows", "EnqueueRoundRows"), GEMV: ("gemv_q4", "EnqueueGemvQ4")}


def body_of(root, kernel):
    """The includes of the kernel's source, and what stands in its namespace."""
    with open(f"{root}/kernels/cuda/{kernel}.cu", encoding="utf-8") as source:
        text = source.read()
    begin, end = "namespace sluice::cuda {\n", "}  // namespace sluice::cuda\n"
    head, rest = text.split(begin)
    return head, rest.split(end)[0]


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
                sys.exit(f"seed_bugs.py: {name}: stands {body.count(text)} times in {kernel}.cu: {text!r}")
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
