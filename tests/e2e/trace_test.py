"""Router traces of the sample model: recording, and equal results of independent replays."""
import json
import os
import subprocess
import sys

import harness

sys.path.insert(0, os.path.join(harness.ROOT, "tests/inferd/policy"))
import replay_twin  # noqa: E402


class TraceTest(harness.TestCase):
    def test_hit_rates_equal_independent_replay(self):
        trace = os.path.join(self.work, "trace")
        text = os.path.join(self.work, "text")
        with open(os.path.join(harness.ROOT, "README.md")) as readme, open(text, "w") as out:
            out.write(readme.read()[:4000])
        scored = self.ok_json("perplexity", "--pack", self.pack, "--text", text, "--max-tokens", "700", "--window",
                              "256", "--stride", "256", "--trace", trace)
        layers = replay_twin.read_trace(trace)
        for experts, top_k, tokens in layers:
            self.assertGreaterEqual(len(tokens), scored["tokens"])
            for chosen, scores in tokens:
                self.assertAlmostEqual(sum(scores), 1, places=4)
                self.assertEqual(sorted(range(experts), key=lambda e: (-scores[e], e))[:top_k], chosen)
        program = os.path.join(os.path.dirname(harness.BIN), "bench", "cache_replay")
        out = subprocess.run([program, trace, "--slots", "2,4,6", "--json"], capture_output=True, check=True)
        found = json.loads(out.stdout)
        for policy in ("lru", "lfru", "score", "oracle"):
            for number, layer in enumerate(layers):
                for i, slots in enumerate(found["slots"]):
                    expected = replay_twin.replay(layer, slots, policy)
                    self.assertAlmostEqual(found["rates"][policy][number][i], expected, places=8,
                                           msg=f"{policy}, layer {number}, {slots} slots")


if __name__ == "__main__":
    harness.main()
