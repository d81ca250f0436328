#!/usr/bin/python3
"""Makes the service times for simulate.py from two runs of deploy/fleet/try_fleet.py --record.

usage: summarize.py AFFINE.jsonl EVEN.jsonl > service_times.json     the scenarios "affine" and "even"
An answer becomes [prompt tokens, seconds of all its tokens except the first]. The time to its first token is drawn separately:
that of a prompt found nearly completely in the cache, plus the time of each token that was not found.
"""
import json
import statistics
import sys

HOSTS = 3
PARALLEL = 8
POSITIONS = (8 << 20) // 1536
PAGE = 32  # the page after a prefix, in which its last prompt differed from the others


def read(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def share(results):
    done = [r for r in results if r.get("prompt")]
    return sum(r["cached"] for r in done) / sum(r["prompt"] for r in done)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    affine, even = read(sys.argv[1]), read(sys.argv[2])
    answers, first_seconds, token_seconds = [], [], []
    for result in affine + even:
        timings = result.get("timings")
        if timings:
            answers.append([result["prompt"], round(timings["predicted_ms"] / 1000, 5)])
            computed = result["prompt"] - result["cached"]
            if computed <= PAGE:
                first_seconds.append(round(timings["prompt_ms"] / 1000, 5))
            else:
                token_seconds.append(round(timings["prompt_ms"] / 1000 / computed, 7))
    # Length of a prefix that was found: the most common number of cached tokens, in whole pages.
    shared = statistics.mode(r["cached"] for r in affine if r.get("cached"))
    # Positions that the KV cache keeps (8 MiB at 1.5 KiB), minus those of running sequences.
    done = [r for r in affine if r.get("prompt")]
    span = max(r["began"] for r in affine) - min(r["began"] for r in affine)
    running = min(PARALLEL, sum(r["ended"] - r["began"] for r in done) / span / HOSTS)
    own = statistics.mean(r["prompt"] + r["made"] for r in done) - shared + PAGE
    kept = int((POSITIONS - running * own) / (shared + PAGE))
    span = max(r["began"] for r in even) - min(r["began"] for r in even)
    json.dump(
        {
            "of": "three hosts of one thread each on a shared machine with two CPUs, sample model in bf16, --parallel 8 --kv-budget 8MiB",
            "hosts": HOSTS, "rate": round(len(even) / span, 2), "parallel": PARALLEL, "beginnings_a_host": 8,
            "kept_beginnings": kept, "shared_tokens": shared,
            "cache_share": {"affine": round(share(affine), 4), "even": round(share(even), 4)},
            "requests": len(affine), "first_seconds": first_seconds, "prompt_token_seconds": token_seconds, "answers": answers,
        },
        sys.stdout,
    )  # fmt: skip


if __name__ == "__main__":
    main()
