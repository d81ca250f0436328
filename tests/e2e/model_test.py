"""Model output against other implementations' logits, tokens and perplexity, and against itself."""
import json
import os
import random
import signal

import numpy

import harness


class GoldenTest(harness.TestCase):
    def test_logits_and_greedy_tokens_equal_golden(self):
        golden = harness.read_safetensors(harness.TINY + "/golden.safetensors")
        pack = os.path.join(self.work, "tiny.pack")
        self.ok("pack", harness.TINY, "--out", pack, "--bits", "bf16")
        ids = os.path.join(self.work, "ids.json")
        with open(ids, "w") as file:
            json.dump(golden["input_ids"].tolist(), file)
        out = os.path.join(self.work, "logits.safetensors")
        self.assertEqual(
            self.ok_json("logits", "--pack", pack, "--token-ids-file", ids, "--out", out, "--kv", "f32"),
            {"tokens": len(golden["input_ids"])},
        )
        logits = harness.read_safetensors(out)["logits"]
        difference = float(numpy.abs(logits - golden["logits"]).max())
        print(f"largest difference of logits: {difference:.2e}")
        self.assertLessEqual(difference, 2e-3)
        answer = self.ok_json(
            "run", "--pack", pack, "--token-ids", ",".join(map(str, golden["prompt_ids"].tolist())),
            "-n", len(golden["greedy_ids"]), "--temperature", 0, "--ignore-eos", "--kv", "f32",
        )  # fmt: skip
        self.assertEqual(answer["token_ids"], golden["greedy_ids"].tolist())

    def test_sample_prompts_give_reference_tokens(self):
        for row in self.greedy:
            answer = self.ok_json(*self.greedy_run(row, "--kv", "f32", "--keep", "5s"))
            self.assertEqual(answer["token_ids"], row["greedy_ids"], row["prompt"])
            text = self.ok("detokenize", "--pack", self.pack, "--token-ids", ",".join(map(str, answer["token_ids"])))
            self.assertEqual(answer["text"].strip(), text.strip())

    def test_perplexity_is_the_references(self):
        # Value of an independent float32 implementation, on the first 51200 tokens of WikiText-2's test set.
        result = self.ok_json(
            "perplexity", "--pack", self.pack, "--text", harness.DATA + "/wikitext2_head.txt",
            "--max-tokens", 51200, "--kv", "f32",
        )  # fmt: skip
        self.assertEqual(result["tokens"], 51200)
        self.assertLessEqual(abs(result["ppl"] / 18.08838454376615 - 1), 0.0005)
        self.assertIsNone(result["kld_mean"])

    def test_sparsity_skips_by_threshold(self):
        common = ("perplexity", "--pack", self.pack, "--text", harness.DATA + "/wikitext2_head.txt", "--max-tokens", 2000)
        dense = self.ok_json(*common)
        self.assertNotIn("sparsity", dense)
        for order in ("up", "gate", "product"):
            # |a| >= 0 holds for every neuron: nothing is skipped and nothing changes.
            whole = self.ok_json(*common, "--sparsity", order, "--sparsity-threshold", 0)
            self.assertEqual((whole["ppl"], whole["sparsity"]), (dense["ppl"], 0), order)
            self.assertEqual(whole["bytes_per_token"], dense["bytes_per_token"])
            some = self.ok_json(*common, "--sparsity", order, "--sparsity-threshold", 0.1)
            self.assertGreater(some["sparsity"], 0.05, order)
            self.assertLess(some["sparsity"], 0.95, order)
            self.assertEqual(len(some["sparsity_by_layer"]), 6)
            self.assertNotEqual(some["ppl"], dense["ppl"])
            self.assertLess(some["bytes_per_token"], dense["bytes_per_token"])
        code, _, err = self.sluice(*common, "--sparsity", "up", "--sparsity-target", 0.5)
        self.assertEqual(code, 1)
        self.assertIn("sluice calibrate", err)

    def test_divergence_from_itself_is_zero(self):
        base = os.path.join(self.work, "base")
        common = ("perplexity", "--pack", self.pack, "--text", harness.DATA + "/wikitext2_head.txt", "--max-tokens", 700)
        saved = self.ok_json(*common, "--save-base", base)
        compared = self.ok_json(*common, "--kl-base", base)
        self.assertEqual(compared["ppl"], saved["ppl"])
        self.assertEqual((compared["kld_mean"], compared["same_top"]), (0, 1))
        code, _, err = self.sluice(*common[:-1], 600, "--kl-base", base)
        self.assertEqual(code, 1)
        self.assertIn("positions", err)


class ExactTest(harness.TestCase):
    def test_results_are_equal_for_all_settings(self):
        draw = random.Random(20261121)
        ids = self.greedy[0]["prompt_ids"] + self.greedy[0]["greedy_ids"]
        path = os.path.join(self.work, "ids.json")
        with open(path, "w") as file:
            json.dump(ids, file)
        base = None
        for k in range(40 if harness.FULL else 6):
            options = [
                "--kv", "f32", "--threads", draw.choice([1, 2]), "--prefill-chunk", draw.choice([1, 7, 64, 512]),
            ]  # fmt: skip
            if k:
                options += ["--dram-budget", draw.choice(["24MiB", "12MiB", "8MiB", "6MiB"])]
            row = self.greedy[draw.randrange(len(self.greedy))]
            answer = self.ok_json(*self.greedy_run(row, *options))
            self.assertEqual(answer["token_ids"], row["greedy_ids"], options)
            out = os.path.join(self.work, "logits.safetensors")
            self.ok("logits", "--pack", self.pack, "--token-ids-file", path, "--out", out, *options)
            logits = harness.read_safetensors(out)["logits"]
            base = logits if base is None else base
            self.assertTrue(numpy.array_equal(logits, base), options)


class RunTest(harness.TestCase):
    def test_json_has_every_key_of_the_contract(self):
        answer = self.ok_json("run", "--pack", self.pack, "--prompt", "The city", "-n", 4, "--seed", 3)
        self.assertLessEqual(
            {"token_ids", "text", "finish_reason", "usage", "timings", "experts"}, set(answer)
        )
        self.assertLessEqual({"prompt_tokens", "completion_tokens"}, set(answer["usage"]))
        self.assertLessEqual(
            {"prompt_seconds", "decode_seconds", "stall_seconds", "tokens_per_second"}, set(answer["timings"])
        )
        self.assertLessEqual({"requests", "hits", "bytes_ssd", "bytes_link"}, set(answer["experts"]))

    def test_streamed_text_equals_json_text(self):
        arguments = ("run", "--pack", self.pack, "--prompt", "In the year", "-n", 40, "--temperature", 0.8, "--seed", 5)
        self.assertEqual(self.ok(*arguments, "-q"), self.ok_json(*arguments)["text"] + "\n")

    def test_the_seed_decides_the_answer(self):
        def answer(*options):
            return self.ok_json("run", "--pack", self.pack, "--prompt", "In the year", "-n", 40, "--keep", "1m", *options)

        answers = {}
        for seed in (0, 1, 2**63):
            first = answer("--temperature", 1, "--seed", seed)
            self.assertEqual(first["seed"], seed)
            self.assertEqual(answer("--temperature", 1, "--seed", seed)["token_ids"], first["token_ids"])
            answers[seed] = tuple(first["token_ids"])
        self.assertEqual(len(set(answers.values())), 3)
        # Without a seed one is drawn and printed, so that the answer can be reproduced.
        drawn = answer("--temperature", 1)
        self.assertEqual(answer("--temperature", 1, "--seed", drawn["seed"])["token_ids"], drawn["token_ids"])
        os.kill(self.only_process("sluice"), signal.SIGTERM)

    def test_the_seed_of_bench_decides_its_prompts(self):
        def rates(*options):
            runs = self.ok_json("bench", "--pack", self.pack, "--device", "sim", "--device-budget", "40%", "--clock",
                                "virtual", "-p", 0, "-n", 24, "-r", 2, *options)
            return runs[0]["samples_ts"], runs[0]["hit_rate"]

        first = rates()
        self.assertEqual(rates("--seed", 1), first)
        self.assertNotEqual(rates("--seed", 7), first)

    def test_standard_input_is_the_prompt(self):
        arguments = ("run", "--pack", self.pack, "-n", "8", "--temperature", "0", "-q")
        given = self.ok(*arguments, "--prompt", "The history of")
        piped = harness.subprocess.run(
            [harness.BIN + "/sluice", *arguments], env=self.environment, input=b"The history of", capture_output=True
        )
        self.assertEqual(piped.stdout.decode(), given)

    def test_stop_strings_end_the_answer_before_them(self):
        arguments = ("run", "--pack", self.pack, "--prompt", "The city", "-n", 40, "--temperature", 0)
        text = self.ok_json(*arguments, "--ignore-eos")["text"]
        stop = text.split()[3]
        stopped = self.ok_json(*arguments, "--stop", stop)
        self.assertEqual(stopped["finish_reason"], "stop_sequence")
        self.assertEqual(stopped["text"], text[: text.index(stop)])

    def test_too_long_prompt_is_refused_with_numbers(self):
        code, out, err = self.sluice(
            "run", "--pack", self.pack, "--prompt", "The city", "--context", 8, "-n", 9, "-q"
        )
        self.assertEqual((code, out.strip()), (1, ""))
        self.assertIn("INVALID_ARGUMENT", err)

    def test_bench_prints_the_keys_of_the_contract(self):
        results = self.ok_json("bench", "--pack", self.pack, "-p", 16, "-n", 8, "-r", 2, "-b", "1,3", "-pg", "8,4")
        self.assertEqual(
            [(r["test"], r["batch"]) for r in results],
            [("pp16", 1), ("tg8", 1), ("pp8+tg4", 1), ("pp16", 3), ("tg8", 3), ("pp8+tg4", 3)],
        )
        keys = {
            "test", "preset", "batch", "avg_ts", "stddev_ts", "samples_ts", "ttft_ms", "tpot_ms", "hit_rate",
            "predictor_precision", "predictor_recall", "stall_seconds", "link_gbps", "ssd_gbps", "read_bandwidth_share",
        }  # fmt: skip
        for result in results:
            self.assertLessEqual(keys, set(result))
            self.assertGreater(result["avg_ts"], 0)
            self.assertEqual(len(result["samples_ts"]), 2)

    def test_bench_prints_a_matrix_of_presets(self):
        results = self.ok_json("bench", "--pack", self.pack, "--preset", "exact,resident", "-p", 0, "-n", 4, "-r", 1,
                               "-b", "1,2")
        self.assertEqual([(r["preset"], r["test"], r["batch"]) for r in results],
                         [(p, "tg4", b) for p in ("exact", "resident") for b in (1, 2)])

    def test_bench_measures_stated_acceptance(self):
        results = self.ok_json("bench", "--pack", self.pack, "--accept", "0.5,1", "-n", 24, "-r", 1, "-b", "1,2",
                               "--drafts", 2, "--all-drafts")
        self.assertEqual([(r["batch"], r["accept"], r["drafts"]) for r in results],
                         [(b, p, 2) for b in (1, 2) for p in (0.5, 1)])
        for result in results:
            self.assertTrue(result["same_tokens"])
            self.assertGreater(result["plain_ts"], 0)
            self.assertAlmostEqual(result["ratio"], result["speculative_ts"] / result["plain_ts"])
        self.assertGreater(results[1]["tokens_per_step"], 2.5)
        self.assertLess(results[0]["tokens_per_step"], 2.5)
        code, _, err = self.sluice("bench", "--pack", self.pack, "--accept", "1.5")
        self.assertEqual(code, 2, err)

    def test_the_lab_compares_presets_in_virtual_time(self):
        out = os.path.join(self.work, "compared")
        result = self.lab_json(
            "--pack", self.pack, "--preset", "ondemand,floe", "--text", os.path.join(harness.ROOT, "README.md"),
            "-p", 16, "-n", 8, "-r", 1, "-b", 1, "--quality-tokens", 64, "--explain", "--out", out,
        )  # fmt: skip
        resident, ondemand, floe = result["rows"]
        self.assertEqual([resident["run"], ondemand["run"], floe["run"]], ["resident", "ondemand", "floe"])
        # Without a profile there are no thresholds: the row says so.
        self.assertTrue(floe["refused"])
        fast, slow = resident["batches"][0], ondemand["batches"][0]
        # Six layers of two experts: 5 ms of compute each and 0.3 ms of attention a layer; or 15 ms of link each.
        self.assertAlmostEqual(fast["tpot_ms"], 61.8, delta=0.1)
        self.assertAlmostEqual(slow["load_ms"], 180, delta=1)
        self.assertEqual((fast["hit_rate"], slow["hit_rate"]), (1, 0))
        self.assertEqual((slow["ppl"], slow["kld_mean"]), (fast["ppl"], 0))
        self.assertIn("link bounds it", slow["explanation"])
        self.assertEqual(sorted(os.listdir(out)), ["presets.json", "presets.md"])
        swept = self.lab_json("--pack", self.pack, "--preset", "ondemand", "-p", 1, "-n", 4, "-r", 1, "-b", 1,
                              "--sweep", "link_ms=15,30")["sweeps"][0]
        loads = [point["rows"][1]["batches"][0]["load_ms"] for point in swept["points"]]
        self.assertAlmostEqual(loads[1] / loads[0], 2, delta=0.01)


if __name__ == "__main__":
    harness.main()
