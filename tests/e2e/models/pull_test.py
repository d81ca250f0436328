"""sluice pull: downloads a model from a local fake hub with injected faults."""
import contextlib
import hashlib
import json
import os
import random
import socket
import sys
import threading

from fake_hub import Hub

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import harness

LARGE = "model.safetensors"


def noise(seed, size):
    return random.Random(seed).randbytes(size)


def tiny_model():
    """Returns the files of a model repository with dummy weights."""
    return {
        "README.md": b"# a model",
        "config.json": b'{"model_type": "mixtral"}',
        LARGE: noise(1, 300_000),
        "pytorch_model.bin": noise(2, 1000),
        "tokenizer.json": noise(3, 20_000),
        "original/consolidated.00.pth": noise(4, 1000),
        "original/config.json": b"{}",
    }


class PullTest(harness.TestCase):
    def setUp(self):
        super().setUp()
        self.cache = os.path.join(self.runtime, "cache")
        self.environment["SLUICE_CACHE_DIR"] = self.cache
        self.folder = os.path.join(self.cache, "models/own--model")
        for name in ("HF_TOKEN", "HF_ENDPOINT", "http_proxy", "https_proxy"):
            self.environment.pop(name, None)

    def hub(self, files=None, **options):
        hub = Hub(tiny_model() if files is None else files, **options)
        self.addCleanup(hub.close)
        return hub

    def pull(self, hub, *args, name="own/model"):
        return self.sluice("pull", name, "--endpoint", hub.endpoint, *args)

    def pulled(self, hub, *args, name="own/model"):
        code, out, err = self.pull(hub, *args, "--json", name=name)
        self.assertEqual(code, 0, err)
        return json.loads(out), err

    def refused(self, hub, *expected, args=(), name="own/model"):
        code, out, err = self.pull(hub, *args, name=name)
        self.assertEqual((code, out), (1, ""), err)
        for text in expected:
            self.assertIn(str(text), err)
        return err

    def there(self):
        """Contents by name; a file that a running pull renames between the listing and the reading is left out."""
        found = {}
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                    found[os.path.relpath(path, self.folder)] = file.read()
        found.pop(".pull.lock", None)
        return found

    def assert_whole(self, hub, names=("config.json", LARGE, "tokenizer.json")):
        self.assertEqual(self.there(), {name: hub.files[name] for name in names})

    def test_what_was_pulled_is_a_model_that_runs(self):
        files = {}
        for name in os.listdir(harness.SAMPLE):
            with open(os.path.join(harness.SAMPLE, name), "rb") as file:
                files[name] = file.read()
        hub = self.hub(files)
        code, out, err = self.pull(hub)
        self.assertEqual(code, 0, err)
        self.assertIn(f"sluice run --model {self.folder} --prompt", out)
        answer = ("--prompt", "The film is", "-n", 4, "--temperature", 0)
        self.assertEqual(self.ok("run", "--model", self.folder, *answer), self.ok("run", "--model", harness.SAMPLE, *answer))

    def test_pull_fetches_needed_files_once(self):
        hub = self.hub()
        summary, _ = self.pulled(hub)
        self.assertEqual(summary["model"], self.folder)
        self.assertEqual((summary["files"], summary["kept"]), (3, 0))
        self.assert_whole(hub)
        again, _ = self.pulled(hub)
        self.assertEqual(again["kept"], 3)
        self.assertEqual(len(hub.asked(LARGE, "store")), 1)

    def test_broken_connection_is_resumed(self):
        hub = self.hub()
        hub.faults[LARGE] = [("break", 100_000), ("break", 50_000), ("break", 1)]
        _, err = self.pulled(hub)
        self.assertEqual([r[2] for r in hub.asked(LARGE, "store")], [0, 100_000, 150_000, 150_001])
        self.assertEqual(hub.sent[LARGE], 300_000)
        self.assertIn("again in", err)
        self.assert_whole(hub)

    def test_killed_pull_is_resumed(self):
        hub = self.hub()
        hub.faults[LARGE] = [("stop",)]
        running = self.start("pull", "own/model", "--endpoint", hub.endpoint)
        self.wait_for(lambda: any(".partial" in n and len(d) == 150_000 for n, d in self.there().items()), "half of it")
        self.assertNotIn("config.json", self.there())
        running.kill()
        self.pulled(hub)
        self.assertEqual(hub.asked(LARGE, "store")[-1][2], 150_000)
        self.assert_whole(hub)

    def test_ctrl_c_says_that_what_came_stays(self):
        hub = self.hub()
        hub.faults[LARGE] = [("stop",)]
        running = self.start("pull", "own/model", "--endpoint", hub.endpoint)
        self.wait_for(lambda: any(".partial" in n and len(d) == 150_000 for n, d in self.there().items()), "half of it")
        running.popen.terminate()
        code, _, err = running.finish()
        self.assertEqual(code, 1)
        self.assertIn("what came stays", err)

    def test_partial_file_of_other_version_is_dropped(self):
        hub = self.hub()
        hub.faults[LARGE] = [("break", 100_000), ("status", 404, {})]
        self.refused(hub, "404")
        hub.files[LARGE] = noise(9, 200_000)
        self.pulled(hub)
        self.assertEqual(hub.asked(LARGE, "store")[-1][2], 0)
        self.assertEqual(self.there()[LARGE], hub.files[LARGE])

    def test_a_hub_without_ranges_sends_all_again(self):
        hub = self.hub()
        hub.faults[LARGE] = [("break", 100_000), ("no range",)]
        self.pulled(hub)
        self.assert_whole(hub)

    def test_wrong_lengths_are_refused_with_both(self):
        for fault, number in (
            (("length", 299_999), 299_999), (("length", 300_001), 300_001), (("long", 7), 300_007),
        ):  # fmt: skip
            hub = self.hub()
            hub.faults[LARGE] = [fault]
            self.refused(hub, "DATA_LOSS", LARGE, number, 300_000)
            self.assertNotIn(LARGE, self.there())
            self.assertNotIn("config.json", self.there())

    def test_short_answer_without_length_is_resumed(self):
        hub = self.hub()
        hub.faults[LARGE] = [("short", 1000)]
        self.pulled(hub)
        self.assertEqual(hub.asked(LARGE, "store")[-1][2], 299_000)
        self.assert_whole(hub)

    def test_wrong_byte_range_is_refused(self):
        hub = self.hub()
        hub.faults[LARGE] = [("break", 100_000), ("wrong range",)]
        self.refused(hub, "DATA_LOSS", "asked for bytes from 100000", "99999")

    def test_wrong_digest_is_retried_once(self):
        for name in (LARGE, "tokenizer.json"):
            hub = self.hub()
            hub.faults[name] = [("flip",)]
            _, err = self.pulled(hub, "--out", os.path.join(self.cache, name))
            self.assertIn("digest is wrong", err)
            self.assertEqual(len([r for r in hub.asked(name) if r[0] == ("store" if name == LARGE else "hub")]), 2)
        hub = self.hub()
        hub.faults[LARGE] = [("flip",), ("flip",)]
        self.refused(hub, "DATA_LOSS", LARGE, hashlib.sha256(hub.files[LARGE]).hexdigest())
        self.assertNotIn(LARGE, self.there())

    def test_token_is_sent_to_the_hub_only(self):
        hub = self.hub(token="hf_secret")
        self.refused(hub, "UNAUTHENTICATED", "set HF_TOKEN")
        self.environment["HF_TOKEN"] = "hf_wrong"
        err = self.refused(hub, "PERMISSION_DENIED", "conditions", "Access is restricted")
        self.assertNotIn("hf_wrong", err)
        self.environment["HF_TOKEN"] = "hf_secret"
        self.pulled(hub)
        self.assert_whole(hub)
        self.assertEqual({r[3] for r in hub.requests if r[0] == "store"}, {None})
        code, _, err = self.sluice("pull", "own/model", "--endpoint", "http://192.0.2.1")
        self.assertEqual(code, 1)
        self.assertIn("not sent unencrypted", err)

    def test_what_is_not_there_is_said(self):
        hub = self.hub()
        self.refused(hub, "NOT_FOUND", "own/other", "404", name="own/other")
        self.refused(hub, "NOT_FOUND", "No such revision", args=("--revision", "v9"))
        self.refused(hub, "NOT_FOUND", "no file q4", name="own/model:q4")
        self.refused(self.hub({"pytorch_model.bin": b"x"}), "NOT_FOUND", "no model that can be packed")
        for name in ("model", "a/b/c", "../model", "own/"):
            self.refused(hub, "INVALID_ARGUMENT", "OWNER/NAME", name=name)
        self.assertEqual(self.there(), {})

    def test_busy_hub_is_retried_after_its_delay(self):
        hub = self.hub()
        hub.faults["api"] = [("status", 429, {"Retry-After": "1"}), ("status", 503, {"Retry-After": "0"})]
        hub.faults[LARGE] = [("status", 500, {"Retry-After": "0"}), ("break", 10), ("status", 502, {"Retry-After": "0"})]
        _, err = self.pulled(hub)
        self.assertIn("429; again in 1s", err)
        self.assert_whole(hub)

    def test_a_hub_that_stays_busy_is_given_up(self):
        hub = self.hub()
        hub.faults["api"] = [("status", 503, {"Retry-After": "0"})] * 20
        self.refused(hub, "UNAVAILABLE", "after 6 attempts", "503")
        hub.faults["api"] = [("status", 429, {"Retry-After": "3600"})]
        self.refused(hub, "UNAVAILABLE", "come again in 1h")

    def test_unreachable_host_is_named(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
            code, out, err = self.sluice("pull", "own/model", "--endpoint", endpoint, "--json")
        self.assertEqual(code, 1)
        self.assertEqual(json.loads(out)["error"]["code"], "UNAVAILABLE")
        self.assertIn(endpoint, err)

    def test_unsafe_file_lists_are_refused(self):
        for path, listed in (
            ("../evil.json", {}), ("/evil.json", {}), ("a//b.json", {}), ("a\nb.json", {}),
            ("x.json", {"oid": "12"}), ("x.json", {"size": -1}), ("x.json", {"lfs": {"oid": "z" * 64, "size": 1}}),
        ):  # fmt: skip
            hub = self.hub({**tiny_model(), path: b"{}"})
            hub.listed[path] = listed
            self.refused(hub, "DATA_LOSS", "file")
        self.assertEqual(os.listdir(self.runtime), [])

    def test_too_small_disk_is_refused_early(self):
        hub = self.hub()
        hub.listed[LARGE] = {"lfs": {"oid": "0" * 64, "size": 1 << 50}}
        self.refused(hub, "RESOURCE_EXHAUSTED", "1.0 PiB", "free", "--out")
        self.assertEqual(self.there(), {})

    def test_of_several_gguf_models_one_is_named(self):
        files = {f"m-{bits}.gguf": noise(i, 70_000) for i, bits in enumerate(("Q4_K_M", "Q8_0"))}
        files.update({f"sub/m-bf16-{i:05}-of-00003.gguf": noise(10 + i, 70_000) for i in (1, 2, 3)})
        files["mmproj-m.gguf"] = b"p"
        hub = self.hub(files)
        self.refused(hub, "m-Q4_K_M.gguf", "m-Q8_0.gguf", "sub/m-bf16-00001-of-00003.gguf", "OWNER/NAME:FILE")
        self.refused(hub, "fits several", name="own/model:q")
        summary, _ = self.pulled(hub, name="own/model:q4_k_m")
        self.assertEqual(summary["model"], self.folder + "/m-Q4_K_M.gguf")
        summary, _ = self.pulled(hub, name="own/model:sub/m-bf16-00002-of-00003.gguf")
        self.assertEqual(summary["model"], self.folder + "/sub/m-bf16-00001-of-00003.gguf")
        order = [r[1][-19:-14] for r in hub.requests if r[0] == "store" and "bf16" in r[1]]
        self.assertEqual(order, ["00003", "00002", "00001"])
        summary, _ = self.pulled(hub, name="own/model:mmproj-m.gguf")
        self.assertIsNone(summary["model"])

    def test_files_of_others_are_not_replaced_unasked(self):
        hub = self.hub()
        os.makedirs(self.folder)
        with open(os.path.join(self.folder, LARGE), "wb") as file:
            file.write(b"mine")
        self.refused(hub, "ALREADY_EXISTS", LARGE, "--force")
        self.assertEqual(self.there(), {LARGE: b"mine"})
        self.pulled(hub, "--force")
        self.assert_whole(hub)

    def test_incomplete_new_version_is_no_model(self):
        hub = self.hub()
        self.pulled(hub)
        hub.files[LARGE] = noise(7, 300_000)
        hub.faults[LARGE] = [("break", 1000), ("status", 404, {})]
        self.refused(hub, "404", args=("--force",))
        self.assertNotIn("config.json", self.there())
        self.pulled(hub, "--force")
        self.assert_whole(hub)

    def test_two_at_once_fetch_each_file_once(self):
        hub = self.hub()
        results = []
        threads = [threading.Thread(target=lambda: results.append(self.pulled(hub))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(summary["kept"] for summary, _ in results), [0, 3])
        self.assertEqual(len(hub.asked(LARGE, "store")), 1)


if __name__ == "__main__":
    harness.main()
