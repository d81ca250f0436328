"""Replays a router trace (inferd/policy/TRACE.md) on its own terms, for comparison with cache_replay.

Written from the papers and the trace's format alone: no code or bookkeeping is shared with the program. Slow and
simple on purpose; exact rational arithmetic where the order of two experts hangs on it."""
import struct


def read_trace(path):
    """[(experts, top_k, [(chosen, scores), ...])] by layer."""
    data = open(path, "rb").read()
    assert data[:8] == b"SLTRACE1"
    (count,) = struct.unpack_from("<I", data, 8)
    layers = [struct.unpack_from("<II", data, 12 + 8 * i) + ([],) for i in range(count)]
    at = 12 + 8 * count
    while at < len(data):
        _, layer, rows = struct.unpack_from("<QII", data, at)
        at += 16
        experts, top_k, tokens = layers[layer]
        flags = [struct.unpack_from("<QII", data, at + 16 * i)[2] for i in range(rows)]
        at += 16 * rows
        ids = struct.unpack_from("<%dH" % (rows * top_k), data, at)
        at += 2 * rows * top_k
        scores = struct.unpack_from("<%df" % (rows * experts), data, at)
        at += 4 * rows * experts
        for i in range(rows):
            if not flags[i] & 2:
                chosen = [e for e in ids[i * top_k:(i + 1) * top_k] if e != 0xFFFF]
                tokens.append((chosen, scores[i * experts:(i + 1) * experts]))
    return layers


def replay(layer, slots, policy, window=32, half_life=64):
    """Hit rate of `policy` (lru, lfru, score, oracle): hits judged before a token, its experts shielded, the best of
    them used last."""
    experts, _, tokens = layer
    cache, hits, accesses = set(), 0, 0
    last, uses, used_at = {}, {}, {}
    clock = 0
    recent = []
    future = [[] for _ in range(experts)]
    for t in range(len(tokens) - 1, -1, -1):
        for expert in tokens[t][0]:
            future[expert].append(t)
    for t, (chosen, scores) in enumerate(tokens):
        recent = (recent + [scores])[-window:]
        for expert in reversed(chosen):
            clock += 1
            last[expert] = clock
            uses[expert] = uses.get(expert, 0) * 2.0 ** (-(t - used_at.get(expert, t)) / half_life) + 1
            used_at[expert] = t
            future[expert].pop()
        hits += sum(expert in cache for expert in chosen)
        accesses += len(chosen)

        def worth(expert):
            if policy == "score":
                # Scores in steps of 2^-32, so that equal sums are equal.
                key = sum(round(row[expert] * 4294967295) for row in recent)
            elif policy == "lfru":
                key = uses.get(expert, 0) * 2.0 ** (-(t - used_at.get(expert, t)) / half_life)
            elif policy == "oracle":
                key = -(future[expert][-1] if future[expert] else 1 << 60)
            else:
                key = 0
            return (key, last.get(expert, 0), expert)

        for expert in chosen:
            if expert not in cache:
                if len(cache) >= slots:
                    cache.remove(min((e for e in cache if e not in chosen), key=worth))
                cache.add(expert)
    return hits / accesses
