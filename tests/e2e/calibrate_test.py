"""`sluice calibrate`: against an independent forward pass, over a kill -9, and with another model's profile."""
import json
import os
import shutil
import struct

import numpy as np

import harness

WINDOW = 512
TOKENS = 1200
TEXT = harness.DATA + "/wikitext2_head.txt"
LEADS = ("up", "gate", "product")


def sample_weights():
    """Returns the sample checkpoint's tensors as float64."""
    with open(harness.SAMPLE + "/model.safetensors", "rb") as file:
        data = file.read()
    length = int.from_bytes(data[:8], "little")
    weights = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            bits = np.frombuffer(data[begin:end], "<u2").astype(np.uint32) << 16
            weights[name] = bits.view(np.float32).astype(np.float64).reshape(entry["shape"])
    return weights


def norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def attend(x, weights, prefix, config):
    tokens, heads, kv_heads = len(x), config["num_attention_heads"], config["num_key_value_heads"]
    size = config["head_dim"]
    angle = np.outer(np.arange(tokens), config["rope_theta"] ** (-np.arange(0, size, 2) / size))[:, None]

    def project(name, count):
        return (x @ weights[prefix + name + "_proj.weight"].T).reshape(tokens, count, size)

    def rope(v):
        a, b = np.split(v, 2, -1)
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

    q, k, v = rope(project("q", heads)), rope(project("k", kv_heads)), project("v", kv_heads)
    k, v = (np.repeat(t, heads // kv_heads, 1) for t in (k, v))
    scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(size)
    scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    out = np.einsum("hts,shd->thd", softmax(scores), v)
    return out.reshape(tokens, -1) @ weights[prefix + "o_proj.weight"].T


def activations(ids):
    """Lead values of all (token, neuron) pairs by (layer, expert) and lead."""
    with open(harness.SAMPLE + "/config.json") as file:
        config = json.load(file)
    weights, epsilon, top_k = sample_weights(), config["rms_norm_eps"], config["num_experts_per_tok"]
    found = {}
    for begin in range(0, len(ids), WINDOW):
        window = [config["bos_token_id"], *ids[begin : begin + WINDOW - 1]][: len(ids) - begin]
        x = weights["model.embed_tokens.weight"][window]
        for layer in range(config["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            x = x + attend(norm(x, weights[p + "input_layernorm.weight"], epsilon), weights, p + "self_attn.", config)
            h = norm(x, weights[p + "post_attention_layernorm.weight"], epsilon)
            chances = softmax(h @ weights[p + "block_sparse_moe.gate.weight"].T)
            best = np.argsort(-chances, -1, "stable")[:, :top_k]
            share = np.take_along_axis(chances, best, -1)
            share /= share.sum(-1, keepdims=True)
            for expert in range(config["num_local_experts"]):
                rows, ranks = np.nonzero(best == expert)
                w1, w2, w3 = (weights[p + f"block_sparse_moe.experts.{expert}.w{i}.weight"] for i in (1, 2, 3))
                gate, up = h[rows] @ w1.T, h[rows] @ w3.T
                gate /= 1 + np.exp(-gate)
                x[rows] += share[rows, ranks, None] * ((gate * up) @ w2.T)
                for lead, values in zip(LEADS, (up, gate, gate * up)):
                    found.setdefault((layer, expert), {}).setdefault(lead, []).append(np.abs(values))
    return {key: {lead: np.concatenate(parts) for lead, parts in value.items()} for key, value in found.items()}


def read_thresholds(path):
    """(shares [points], pooled [lead, points], by expert [lead, expert of all layers, points]); as common/profile/FORMAT.md has it."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"SLTHRESH"
    version, points = struct.unpack_from("<II", data, 8)
    assert version == 2
    layers, = struct.unpack_from("<Q", data, 56)
    experts = sum(struct.unpack_from(f"<{layers}I", data, 64))
    begin = 64 + 4 * layers
    shares = np.frombuffer(data, "<f8", points, begin)
    values = np.frombuffer(data[begin + 8 * points : -16], "<f4")
    return shares, values[: 3 * points].reshape(3, points), values[3 * points :].reshape(3, experts, points)


def order_statistics(values):
    """The ceil(k n)-th smallest, by per mille."""
    values = np.sort(values, None)
    return {share: values[-(-share * len(values) // 1000) - 1] for share in (500, 600, 700, 800, 900)}


class CalibrateTest(harness.TestCase):
    def calibrate(self, pack, *args, tokens=TOKENS):
        return ("calibrate", "--pack", pack, "--text", TEXT, "--max-tokens", tokens, "--window", WINDOW, *args)

    def test_profile_matches_independent_forward_pass(self):
        pack = shutil.copytree(self.pack, os.path.join(self.work, "measured.pack"))
        result = self.ok_json(*self.calibrate(
            pack, "--sensitivity-tokens", 0, "--sparsity-tokens", 0, "--no-predictors"))  # fmt: skip
        self.assertEqual((result["tokens"], result["files"]), (TOKENS, ["cache.json", "thresholds.bin", "usage.json"]))
        ids = self.ok_json("tokenize", "--pack", pack, "--text-file", TEXT, "--no-special", "--plain")["ids"]
        expected = activations(ids[:TOKENS])
        with open(pack + "/profile/usage.json") as file:
            usage = json.load(file)
        for (layer, expert), values in expected.items():
            # A few tokens are so near a tie that float32 decides otherwise.
            self.assertLessEqual(abs(usage["layers"][layer][expert] - len(values["up"])), 3)
        shares, pooled, tables = read_thresholds(pack + "/profile/thresholds.bin")
        place_of = {round(1000 * share): place for place, share in enumerate(shares) if round(1000 * share, 9) % 100 == 0}
        worst = 0
        for number, lead in enumerate(LEADS):
            everything = np.concatenate([values[lead].ravel() for values in expected.values()])
            for share, wanted in order_statistics(everything).items():
                worst = max(worst, abs(pooled[number][place_of[share]] / wanted - 1))
            for place, values in enumerate(expected.values()):
                for share, wanted in order_statistics(values[lead]).items():
                    worst = max(worst, abs(tables[number][place][place_of[share]] / wanted - 1))
        print(f"largest relative difference of a threshold: {worst:.2e}")
        self.assertLessEqual(worst, 5e-3)
        for order in LEADS:
            run = self.ok_json(
                "perplexity", "--pack", pack, "--text", TEXT, "--max-tokens", TOKENS, "--sparsity", order,
                "--sparsity-target", 0.8,
            )  # fmt: skip
            # BOS and the last tokens differ from the calibration input, and all positions see masked layers.
            self.assertLessEqual(abs(run["sparsity"] - 0.8), 0.01, order)
            run = self.ok_json(
                "perplexity", "--pack", pack, "--text", TEXT, "--max-tokens", TOKENS, "--sparsity", order,
                "--sparsity-target", 0.999,
            )  # fmt: skip
            self.assertLessEqual(abs(run["sparsity"] - 0.999), 0.0005, order)

    def test_killed_inferd_loses_no_finished_stage(self):
        whole = shutil.copytree(self.pack, os.path.join(self.work, "whole.pack"))
        killed = shutil.copytree(self.pack, os.path.join(self.work, "killed.pack"))
        options = ("--sensitivity-tokens", 500, "--sparsity-tokens", 0, "--epochs", 1)
        self.assertFalse(self.ok_json(*self.calibrate(whole, *options))["resumed"])
        process = self.start(*self.calibrate(killed, *options, "--json"))
        self.wait_for(lambda: os.path.exists(killed + "/profile/.calibrate/stage1"), "the first stage to end")
        self.kill_daemon("inferd")
        code, _, err = process.finish()
        self.assertEqual(code, 1, err)
        self.assertFalse(os.path.exists(killed + "/profile/thresholds.bin"))
        self.assertTrue(self.ok_json(*self.calibrate(killed, *options))["resumed"])
        self.assertEqual(sorted(os.listdir(killed + "/profile")), sorted(os.listdir(whole + "/profile")))
        for name in os.listdir(whole + "/profile"):
            with open(f"{whole}/profile/{name}", "rb") as a, open(f"{killed}/profile/{name}", "rb") as b:
                self.assertEqual(a.read(), b.read(), name)

    def test_thresholds_of_another_pack_are_refused(self):
        pack = shutil.copytree(self.pack, os.path.join(self.work, "first.pack"))
        other = os.path.join(self.work, "other.pack")
        first_id = json.loads(self.ok("inspect", pack, "--json"))["model_id"]
        other_id = self.ok_json("pack", harness.SAMPLE, "--out", other, "--bits", "q8")["model_id"]
        self.ok(*self.calibrate(
            pack, "--sensitivity-tokens", 0, "--sparsity-tokens", 0, "--no-predictors", tokens=600))  # fmt: skip
        shutil.copytree(pack + "/profile", other + "/profile")
        code, _, err = self.sluice(
            "perplexity", "--pack", other, "--text", TEXT, "--max-tokens", 600, "--sparsity", "gate",
            "--sparsity-target", 0.5,
        )  # fmt: skip
        self.assertEqual(code, 1)
        self.assertIn(first_id, err)
        self.assertIn(other_id, err)


if __name__ == "__main__":
    harness.main()
