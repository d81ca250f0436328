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
    ("norm_no_barrier_after_load", NORM, "staged : from;\n  __syncthreads();", "staged : from;", "race|uninitialised"),
    ("norm_no_barrier_before_factor", NORM, "  __syncthreads();\n  const DeviceNorm norm", "  const DeviceNorm norm",
     "race|uninitialised"),
    ("norm_barrier_of_one_warp", NORM, "    if (threadIdx.x == 0) {\n      shared_norm",
     "    __syncthreads();\n    if (threadIdx.x == 0) {\n      shared_norm", "barrier|race|uninitialised"),
    ("norm_load_one_too_many", NORM, "k < cols; k += kThreads) {\n      staged[k]", "k <= cols; k += kThreads) {\n      staged[k]",
     "out of bounds"),
    ("norm_load_one_too_few", NORM, "k < cols; k += kThreads) {\n      staged[k]",
     "k + 1 < cols; k += kThreads) {\n      staged[k]", "uninitialised"),
    ("norm_row_of_the_next", NORM, "(launch.ids == nullptr ? token", "(launch.ids == nullptr ? token + 1", "out of bounds"),
    ("norm_rows_overlap", NORM, "launch.y + blockIdx.x * launch.y_stride", "launch.y + blockIdx.x * (launch.y_stride - 1)", "race"),
    ("norm_sum_of_half_a_warp", NORM, "launch.norm.on && threadIdx.x < kLanes", "launch.norm.on && threadIdx.x < kLanes / 2",
     "mask|barrier"),
    ("norm_sum_reads_the_next", NORM, "const float d = x[k] - mean", "const float d = x[k + 1] - mean", "out of bounds"),
    ("norm_last_not_written", NORM, "k < cols; k += kThreads) {\n      y[k]", "k + 1 < cols; k += kThreads) {\n      y[k]",
     "uninitialised"),
    ("norm_weight_of_the_next", NORM, "norm.weight[k]", "norm.weight[k + 1]", "out of bounds"),
    ("norm_factor_by_all_lanes", NORM, "    if (threadIdx.x == 0) {\n      shared_norm", "    {\n      shared_norm", "race"),
    ("norm_without_epsilon", NORM, " + launch.norm.epsilon", "", "wrong"),
    ("round_a_group_too_many", ROUND, "g < GroupsOf(cols, launch.group)", "g <= GroupsOf(cols, launch.group)",
     "race|out of bounds|uninitialised"),
    ("round_tail_not_guarded", ROUND, "k < group && first + k < cols ? value", "k < group ? value", "out of bounds"),
    ("round_unit_not_filled", ROUND, "first + k < UnitsOf(cols) * kUnit", "first + k < cols", "uninitialised"),
    ("round_sum_by_two_lanes", ROUND, "if (lane == 0)", "if (lane < 2)", "race"),
    ("round_warps_share_groups", ROUND, "g = threadIdx.x / kLanes;", "g = threadIdx.x / kLanes / 2;", "race"),
    ("round_maximum_of_each_lane", ROUND, "  largest = WarpMax(largest);\n", "", "wrong"),
    ("gemv_waits_for_one_group_less", GEMV, "__pipeline_wait_prior(0)", "__pipeline_wait_prior(1)",
     "copy in flight|uninitialised"),
    ("gemv_does_not_commit", GEMV, "  __pipeline_commit();\n", "", "copy in flight|uninitialised"),
    ("gemv_no_barrier", GEMV, "__pipeline_wait_prior(0);\n  __syncthreads();", "__pipeline_wait_prior(0);",
     "race|uninitialised"),
    ("gemv_returns_before_the_barrier", GEMV, "  StagedRows x;\n",
     "  if (block * kQuantizedRows + threadIdx.x / kLanes >= part.rows) {\n    return;\n  }\n  StagedRows x;\n",
     "barrier|uninitialised"),
    ("gemv_codes_off_by_8_bytes", GEMV, "LoadWords(row + 32 * block, m.aligned", "LoadWords(row + 8 + 32 * block, m.aligned",
     "misaligned"),
    ("gemv_groups_not_guarded", GEMV, "const bool inside = g < groups;", "const bool inside = true;",
     "out of bounds|uninitialised"),
    ("gemv_half_a_mask", GEMV, "__shfl_sync(kAllLanes, factor,", "__shfl_sync(0x0000ffffu, factor,", "mask"),
    ("gemv_shuffle_in_a_branch", GEMV, "const float step_factor = __shfl_sync(kAllLanes, factor, lane % 8 + step);",
     "float step_factor = 0;\n        if (inside) {\n          step_factor = __shfl_sync(kAllLanes, factor, lane % 8 + step);\n"
     "        }", "mask"),
    ("gemv_tail_not_staged", GEMV, "quad < 2 * units;", "quad + 1 < 2 * units;", "uninitialised"),
    ("gemv_row_of_the_next", GEMV, "blockIdx.z * part.rows + r), x, sums", "blockIdx.z * part.rows + r + 1), x, sums",
     "out of bounds"),
    ("gemv_row_too_many", GEMV, "min(part.rows, (block + 1)", "min(part.rows + 1, (block + 1)", "out of bounds"),
    ("gemv_lanes_write_alike", GEMV, "threadIdx.x % kLanes == 0) {\n        Write", "threadIdx.x % kLanes < 4) {\n        Write",
     "race"),
    ("gemv_sum_not_fused", GEMV, "out[t] = fmaf(step_factor, step_term, out[t]);",
     "out[t] = out[t] + step_factor * step_term;", "wrong"),
    ("gemv_zero_not_subtracted", GEMV, "fmaf(-zero, static_cast<float>(x_sum)", "fmaf(zero, static_cast<float>(x_sum)", "wrong"),
]

# Sources whose namespaces' contents make a copy, and the entry that a test calls.
SOURCES = {NORM: ["prepare.cu"], ROUND: ["prepare.cu"], GEMV: ["dots.cuh", "matmul.cu"]}
ENTRIES = {NORM: ("prepare", "EnqueuePrepare"), ROUND: ("prepare", "EnqueuePrepare"), GEMV: ("matmul", "EnqueueMatMul")}
# One token and the encoding that the test has are enough: copies compile in a tenth of the time.
def case_of(encoding):
    return f"    case Encoding::{encoding}:\n      UnitSums<Encoding::{encoding}, kTokens>(m, row, x, sums);\n      break;\n"


SHORTER = {GEMV: [("constexpr uint32_t kMany = 4;", "constexpr uint32_t kMany = 1;"),
                  (case_of("kQ8"), ""), (case_of("kQ3"), ""), (case_of("kQ2"), ""),
                  ("      UnitSums<Encoding::kMxfp4, kTokens>(m, row, x, sums);\n", ""),
                  ("    PlainPart<kTokens>(launch, part, block);\n", "")]}


def body_of(root, kernel):
    """The includes of the kernel's sources, and what stands in their namespaces."""
    heads, bodies = [], []
    for name in SOURCES[kernel]:
        with open(f"{root}/kernels/cuda/device/{name}", encoding="utf-8") as source:
            text = source.read()
        head, rest = text.split("namespace sluice::cuda {\n")
        heads.append("".join(line for line in head.splitlines(True)
                             if line.startswith("#include") and "dots.cuh" not in line))
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
